// A LLaMA-style decoder in C, forward and backward, that speaks the line protocol of decoderspec (docs/protocol.md).
//
//     cc -O2 -std=c11 -o decoder decoder.c -lm
//     decoderspec check --command ./decoder
//
// In double precision, with the C library alone, on a little-endian machine. Written to be read: the model comes first,
// each backward right below its forward, and then the protocol. Arrays travel as raw bytes; `./decoder hex` and
// `./decoder base64` choose another encoding. Rows are [B, T, d], heads [B, h, T, w], matrices [in, out].

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EACH(i, count) for (int64_t i = 0; i < (count); i++)

static void refuse(const char *category, const char *format, ...);
static void *take(int64_t count, size_t size);

// Zeroed memory of the request at hand: gone when it is answered.
static double *doubles(int64_t count) { return take(count, sizeof(double)); }

// ---------------------------------------------------------------- the operations; a backward adds to what it is given

static void embed(double *x, const double *table, const int64_t *tokens, int64_t rows, int64_t d) {
    EACH(r, rows) memcpy(x + r * d, table + tokens[r] * d, d * sizeof(double));
}

static void embed_backward(double *dtable, const double *dx, const int64_t *tokens, int64_t rows, int64_t d) {
    EACH(r, rows) EACH(i, d) dtable[tokens[r] * d + i] += dx[r * d + i];  // a repeated id adds up
}

static double inverse_root(const double *x, double epsilon, int64_t d) {
    double sum = 0;
    EACH(i, d) sum += x[i] * x[i];
    if (sum == 0 && epsilon == 0) refuse("numeric", "a row without energy cannot be normalized with an epsilon of 0");
    return 1 / sqrt(sum / d + epsilon);
}

static void rms_norm(double *y, const double *x, const double *gain, double epsilon, int64_t rows, int64_t d) {
    EACH(r, rows) {
        double root = inverse_root(x + r * d, epsilon, d);
        EACH(i, d) y[r * d + i] = x[r * d + i] * root * gain[i];
    }
}

// Of y = n * gain, n = x * root, where root depends on the whole row.
static void rms_norm_backward(double *dx, double *dgain, const double *dy, const double *x, const double *gain,
                              double epsilon, int64_t rows, int64_t d) {
    EACH(r, rows) {
        double root = inverse_root(x + r * d, epsilon, d), mean = 0;
        EACH(i, d) mean += dy[r * d + i] * gain[i] * x[r * d + i] * root / d;
        EACH(i, d) {
            double n = x[r * d + i] * root, dn = dy[r * d + i] * gain[i];
            dgain[i] += dy[r * d + i] * n;
            dx[r * d + i] += root * (dn - n * mean);
        }
    }
}

static void linear(double *y, const double *x, const double *weight, int64_t rows, int64_t in, int64_t out) {
    EACH(r, rows) {
        EACH(o, out) y[r * out + o] = 0;
        EACH(i, in) EACH(o, out) y[r * out + o] += x[r * in + i] * weight[i * out + o];
    }
}

// Of y = x @ W: dx = dy @ W^T, dW = x^T @ dy.
static void linear_backward(double *dx, double *dweight, const double *dy, const double *x, const double *weight,
                            int64_t rows, int64_t in, int64_t out) {
    EACH(r, rows) EACH(i, in) {
        double sum = 0;
        EACH(o, out) {
            sum += dy[r * out + o] * weight[i * out + o];
            dweight[i * out + o] += x[r * in + i] * dy[r * out + o];
        }
        dx[r * in + i] += sum;
    }
}

typedef struct {
    int64_t B, T, h, w;
} Heads;

// [B, T, d] to [B, h, T, w]: contiguous slices, one per head.
static void split(double *y, const double *x, Heads n) {
    EACH(b, n.B) EACH(h, n.h) EACH(t, n.T)
        memcpy(y + ((b * n.h + h) * n.T + t) * n.w, x + ((b * n.T + t) * n.h + h) * n.w, n.w * sizeof(double));
}

// [B, h, T, w] to [B, T, d]: the inverse of split, and its backward.
static void merge(double *y, const double *x, Heads n) {
    EACH(b, n.B) EACH(t, n.T) EACH(h, n.h)
        memcpy(y + ((b * n.T + t) * n.h + h) * n.w, x + ((b * n.h + h) * n.T + t) * n.w, n.w * sizeof(double));
}

// Adjacent pairs (a, b) to (a cos - b sin, a sin + b cos), the first position at `offset`. A rotation is orthogonal:
// its backward turns the other way, `way` = -1.
static void rotate(double *y, const double *x, double base, int64_t offset, double way, Heads n) {
    EACH(bh, n.B * n.h) EACH(t, n.T) EACH(i, n.w / 2) {
        int64_t at = (bh * n.T + t) * n.w + 2 * i;
        double angle = (double)(offset + t) * pow(base, -2.0 * (double)i / (double)n.w);
        double c = cos(angle), s = way * sin(angle), a = x[at], b = x[at + 1];
        y[at] = a * c - b * s;
        y[at + 1] = a * s + b * c;
    }
}

// weights = softmax(q . k / sqrt(w)) over the keys up to the query, 0 after it; heads = weights @ value.
static void attend(double *weights, double *heads, const double *query, const double *key, const double *value,
                   Heads n) {
    EACH(bh, n.B * n.h) EACH(t, n.T) {
        const double *q = query + (bh * n.T + t) * n.w, *k = key + bh * n.T * n.w, *v = value + bh * n.T * n.w;
        double *p = weights + (bh * n.T + t) * n.T, *o = heads + (bh * n.T + t) * n.w, most = -INFINITY, sum = 0;
        EACH(s, t + 1) {
            p[s] = 0;
            EACH(i, n.w) p[s] += q[i] * k[s * n.w + i];
            p[s] /= sqrt((double)n.w);
            most = fmax(most, p[s]);
        }
        EACH(s, t + 1) sum += p[s] = exp(p[s] - most);
        EACH(s, n.T) p[s] = s <= t ? p[s] / sum : 0;
        EACH(i, n.w) o[i] = 0;
        EACH(s, t + 1) EACH(i, n.w) o[i] += p[s] * v[s * n.w + i];
    }
}

// Of o = p @ v, p = softmax(s), s = q . k / sqrt(w): ds = p * (dp - sum(p * dp)).
static void attend_backward(double *dquery, double *dkey, double *dvalue, const double *dheads, const double *weights,
                            const double *query, const double *key, const double *value, Heads n) {
    double *dp = doubles(n.T);
    EACH(bh, n.B * n.h) EACH(t, n.T) {
        int64_t here = (bh * n.T + t) * n.w, all = bh * n.T * n.w;
        const double *p = weights + (bh * n.T + t) * n.T;
        double inner = 0;
        EACH(s, t + 1) {
            dp[s] = 0;
            EACH(i, n.w) {
                dp[s] += dheads[here + i] * value[all + s * n.w + i];
                dvalue[all + s * n.w + i] += p[s] * dheads[here + i];
            }
            inner += p[s] * dp[s];
        }
        EACH(s, t + 1) {
            double ds = p[s] * (dp[s] - inner) / sqrt((double)n.w);
            EACH(i, n.w) {
                dquery[here + i] += ds * key[all + s * n.w + i];
                dkey[all + s * n.w + i] += ds * query[here + i];
            }
        }
    }
}

static void swiglu(double *silu, double *product, const double *gate, const double *up, int64_t count) {
    EACH(i, count) {
        silu[i] = gate[i] / (1 + exp(-gate[i]));
        product[i] = silu[i] * up[i];
    }
}

// Of product = silu(gate) * up, silu(g) = g s with s = 1 / (1 + exp(-g)): dsilu/dg = s (1 + g (1 - s)).
static void swiglu_backward(double *dgate, double *dup, const double *dproduct, const double *gate, const double *silu,
                            const double *up, int64_t count) {
    EACH(i, count) {
        double s = 1 / (1 + exp(-gate[i]));
        dup[i] += dproduct[i] * silu[i];
        dgate[i] += dproduct[i] * up[i] * s * (1 + gate[i] * (1 - s));
    }
}

static void add(double *y, const double *x, const double *branch, int64_t count) {
    EACH(i, count) y[i] = x[i] + branch[i];
}

// logits = x @ E^T, with the table of the lookup.
static void project(double *logits, const double *x, const double *table, int64_t rows, int64_t V, int64_t d) {
    EACH(r, rows) EACH(v, V) {
        double sum = 0;
        EACH(i, d) sum += x[r * d + i] * table[v * d + i];
        logits[r * V + v] = sum;
    }
}

static void project_backward(double *dx, double *dtable, const double *dlogits, const double *x, const double *table,
                             int64_t rows, int64_t V, int64_t d) {
    EACH(r, rows) EACH(v, V) EACH(i, d) {
        dx[r * d + i] += dlogits[r * V + v] * table[v * d + i];
        dtable[v * d + i] += dlogits[r * V + v] * x[r * d + i];
    }
}

static double log_sum_exp(const double *row, int64_t V) {
    double most = -INFINITY, sum = 0;
    EACH(v, V) most = fmax(most, row[v]);
    EACH(v, V) sum += exp(row[v] - most);
    return most + log(sum);
}

// The mean over all rows of -log softmax(logits)[target].
static double nll(const double *logits, const int64_t *targets, int64_t rows, int64_t V) {
    double sum = 0;
    EACH(r, rows) sum += log_sum_exp(logits + r * V, V) - logits[r * V + targets[r]];
    return sum / (double)rows;
}

// softmax(logits) - 1 at the target, shared among the rows.
static void nll_backward(double *dlogits, const double *logits, const int64_t *targets, int64_t rows, int64_t V) {
    EACH(r, rows) {
        double whole = log_sum_exp(logits + r * V, V);
        EACH(v, V) dlogits[r * V + v] += (exp(logits[r * V + v] - whole) - (v == targets[r])) / (double)rows;
    }
}

// ---------------------------------------------------------------- the decoder

typedef struct {
    int64_t V, d, h, f, N, max_positions;
    double rope_base, rms_epsilon;
} Config;

// Pointers in canonical order, so that they are also a list: parameters, or their gradients.
typedef struct {
    double *attention_norm, *query, *key, *value, *output, *ffn_norm, *gate, *up, *down;
} Layer;

static const struct {
    const char *name, *shape;
} LAYER[] = {
    {"attention_norm.gain", "d"},      {"attention.query.weight", "dd"}, {"attention.key.weight", "dd"},
    {"attention.value.weight", "dd"},  {"attention.output.weight", "dd"}, {"ffn_norm.gain", "d"},
    {"ffn.gate.weight", "df"},         {"ffn.up.weight", "df"},          {"ffn.down.weight", "fd"},
};
enum { IN_LAYER = sizeof LAYER / sizeof LAYER[0] };

typedef struct {
    double *table;   // [V, d], as the lookup and as the head
    Layer *layers;   // N
    double *final_norm;
} Parameters;

// What each step of a block puts out, in forward order: also a list.
typedef struct {
    double *attention_norm, *query, *key, *value, *rotated_query, *rotated_key, *weights, *heads, *merged,
        *attention_output, *after_attention, *ffn_norm, *gate, *silu, *up, *product, *ffn_output, *output;
} BlockStages;

static const struct {
    const char *name, *shape;
} BLOCK[] = {
    {"attention_norm", "BTd"},           {"attention.query", "BhTw"},       {"attention.key", "BhTw"},
    {"attention.value", "BhTw"},         {"attention.rotated_query", "BhTw"}, {"attention.rotated_key", "BhTw"},
    {"attention.weights", "BhTT"},       {"attention.heads", "BhTw"},       {"attention.merged", "BTd"},
    {"attention.output", "BTd"},         {"after_attention", "BTd"},        {"ffn_norm", "BTd"},
    {"ffn.gate", "BTf"},                 {"ffn.silu", "BTf"},               {"ffn.up", "BTf"},
    {"ffn.product", "BTf"},              {"ffn.output", "BTd"},             {"output", "BTd"},
};
enum { IN_BLOCK = sizeof BLOCK / sizeof BLOCK[0] };

typedef struct {
    double *embedding;
    BlockStages *blocks;  // N
    double *final_norm, *logits;
} Stages;

static Heads heads_of(const Config *c, int64_t B, int64_t T) { return (Heads){B, T, c->h, c->d / c->h}; }

static int64_t axis(const Config *c, char letter, int64_t B, int64_t T) {
    switch (letter) {
        case 'B': return B;
        case 'T': return T;
        case 'V': return c->V;
        case 'd': return c->d;
        case 'h': return c->h;
        case 'w': return c->d / c->h;
        default: return c->f;
    }
}

static int64_t size_of(const Config *c, const char *shape, int64_t B, int64_t T) {
    int64_t size = 1;
    for (; *shape; shape++) size *= axis(c, *shape, B, T);
    return size;
}

static BlockStages block(const Config *c, const Layer *p, const double *x, int64_t offset, int64_t B, int64_t T) {
    int64_t rows = B * T, d = c->d, f = c->f;
    Heads n = heads_of(c, B, T);
    BlockStages s;
    EACH(i, IN_BLOCK) ((double **)&s)[i] = doubles(size_of(c, BLOCK[i].shape, B, T));
    double *flat = doubles(rows * d);

    rms_norm(s.attention_norm, x, p->attention_norm, c->rms_epsilon, rows, d);
    linear(flat, s.attention_norm, p->query, rows, d, d), split(s.query, flat, n);
    linear(flat, s.attention_norm, p->key, rows, d, d), split(s.key, flat, n);
    linear(flat, s.attention_norm, p->value, rows, d, d), split(s.value, flat, n);
    rotate(s.rotated_query, s.query, c->rope_base, offset, 1, n);
    rotate(s.rotated_key, s.key, c->rope_base, offset, 1, n);
    attend(s.weights, s.heads, s.rotated_query, s.rotated_key, s.value, n);
    merge(s.merged, s.heads, n);
    linear(s.attention_output, s.merged, p->output, rows, d, d);
    add(s.after_attention, x, s.attention_output, rows * d);

    rms_norm(s.ffn_norm, s.after_attention, p->ffn_norm, c->rms_epsilon, rows, d);
    linear(s.gate, s.ffn_norm, p->gate, rows, d, f);
    linear(s.up, s.ffn_norm, p->up, rows, d, f);
    swiglu(s.silu, s.product, s.gate, s.up, rows * f);
    linear(s.ffn_output, s.product, p->down, rows, f, d);
    add(s.output, s.after_attention, s.ffn_output, rows * d);
    return s;
}

// The gradient of x from that of the output; those of the parameters are added to `g`.
static double *block_backward(const Config *c, Layer *g, const double *doutput, const Layer *p, const BlockStages *s,
                              const double *x, int64_t offset, int64_t B, int64_t T) {
    int64_t rows = B * T, d = c->d, f = c->f;
    Heads n = heads_of(c, B, T);
    double *dproduct = doubles(rows * f), *dgate = doubles(rows * f), *dup = doubles(rows * f);
    double *dffn_norm = doubles(rows * d), *dafter = doubles(rows * d);
    add(dafter, dafter, doutput, rows * d);
    linear_backward(dproduct, g->down, doutput, s->product, p->down, rows, f, d);
    swiglu_backward(dgate, dup, dproduct, s->gate, s->silu, s->up, rows * f);
    linear_backward(dffn_norm, g->up, dup, s->ffn_norm, p->up, rows, d, f);
    linear_backward(dffn_norm, g->gate, dgate, s->ffn_norm, p->gate, rows, d, f);
    rms_norm_backward(dafter, g->ffn_norm, dffn_norm, s->after_attention, p->ffn_norm, c->rms_epsilon, rows, d);

    double *dmerged = doubles(rows * d), *dheads = doubles(rows * d), *turned = doubles(rows * d);
    double *dquery = doubles(rows * d), *dkey = doubles(rows * d), *dvalue = doubles(rows * d);
    double *dnorm = doubles(rows * d), *dx = doubles(rows * d), *flat = doubles(rows * d);
    linear_backward(dmerged, g->output, dafter, s->merged, p->output, rows, d, d);
    split(dheads, dmerged, n);
    attend_backward(dquery, dkey, dvalue, dheads, s->weights, s->rotated_query, s->rotated_key, s->value, n);
    merge(flat, dvalue, n);
    linear_backward(dnorm, g->value, flat, s->attention_norm, p->value, rows, d, d);
    rotate(turned, dkey, c->rope_base, offset, -1, n), merge(flat, turned, n);
    linear_backward(dnorm, g->key, flat, s->attention_norm, p->key, rows, d, d);
    rotate(turned, dquery, c->rope_base, offset, -1, n), merge(flat, turned, n);
    linear_backward(dnorm, g->query, flat, s->attention_norm, p->query, rows, d, d);
    add(dx, dx, dafter, rows * d);
    rms_norm_backward(dx, g->attention_norm, dnorm, x, p->attention_norm, c->rms_epsilon, rows, d);
    return dx;
}

static Stages decoder(const Config *c, const Parameters *p, const int64_t *tokens, int64_t B, int64_t T) {
    int64_t rows = B * T;
    Stages s = {doubles(rows * c->d), take(c->N, sizeof(BlockStages)), doubles(rows * c->d), doubles(rows * c->V)};
    embed(s.embedding, p->table, tokens, rows, c->d);
    const double *x = s.embedding;
    EACH(n, c->N) {
        s.blocks[n] = block(c, &p->layers[n], x, 0, B, T);
        x = s.blocks[n].output;
    }
    rms_norm(s.final_norm, x, p->final_norm, c->rms_epsilon, rows, c->d);
    project(s.logits, s.final_norm, p->table, rows, c->V, c->d);
    return s;
}

// Gradients of the loss: `g->table` as the lookup alone, `dhead` as the head.
static void decoder_backward(const Config *c, Parameters *g, double *dhead, const Parameters *p, const int64_t *tokens,
                             const int64_t *targets, int64_t B, int64_t T) {
    int64_t rows = B * T;
    Stages s = decoder(c, p, tokens, B, T);
    double *dlogits = doubles(rows * c->V), *dnorm = doubles(rows * c->d), *dx = doubles(rows * c->d);
    nll_backward(dlogits, s.logits, targets, rows, c->V);
    project_backward(dnorm, dhead, dlogits, s.final_norm, p->table, rows, c->V, c->d);
    const double *last = c->N ? s.blocks[c->N - 1].output : s.embedding;
    rms_norm_backward(dx, g->final_norm, dnorm, last, p->final_norm, c->rms_epsilon, rows, c->d);
    for (int64_t n = c->N - 1; n >= 0; n--) {
        const double *x = n ? s.blocks[n - 1].output : s.embedding;
        dx = block_backward(c, &g->layers[n], dx, &p->layers[n], &s.blocks[n], x, 0, B, T);
    }
    embed_backward(g->table, dx, tokens, rows, c->d);
}

// ---------------------------------------------------------------- parameters by number, in canonical order

static int64_t parameter_count(const Config *c) { return 2 + IN_LAYER * c->N; }

static double **parameter(const Parameters *p, const Config *c, int64_t i) {
    if (i == 0) return (double **)&p->table;
    if (i == parameter_count(c) - 1) return (double **)&p->final_norm;
    return (double **)&p->layers[(i - 1) / IN_LAYER] + (i - 1) % IN_LAYER;
}

static const char *parameter_shape(const Config *c, int64_t i) {
    if (i == 0) return "Vd";
    return i == parameter_count(c) - 1 ? "d" : LAYER[(i - 1) % IN_LAYER].shape;
}

static char *parameter_name(const Config *c, int64_t i) {
    char *name = take(64, 1);
    if (i == 0) return strcpy(name, "token_embedding.weight");
    if (i == parameter_count(c) - 1) return strcpy(name, "final_norm.gain");
    snprintf(name, 64, "blocks.%" PRId64 ".%s", (i - 1) / IN_LAYER, LAYER[(i - 1) % IN_LAYER].name);
    return name;
}

static Parameters zeros(const Config *c) {
    Parameters p = {NULL, take(c->N, sizeof(Layer)), NULL};
    EACH(i, parameter_count(c)) *parameter(&p, c, i) = doubles(size_of(c, parameter_shape(c, i), 0, 0));
    return p;
}

static double next_unit(uint64_t *state) {  // SplitMix64
    uint64_t v = *state += 0x9E3779B97F4A7C15u;
    v = (v ^ v >> 30) * 0xBF58476D1CE4E5B9u;
    v = (v ^ v >> 27) * 0x94D049BB133111EBu;
    return (double)((v ^ v >> 31) >> 11) * 0x1p-53;
}

static void initialize(Parameters *p, const Config *c, uint64_t seed) {
    EACH(i, parameter_count(c)) {
        const char *shape = parameter_shape(c, i);
        int64_t size = size_of(c, shape, 0, 0);
        double limit = shape[1] ? sqrt(6.0 / (double)(axis(c, shape[0], 0, 0) + axis(c, shape[1], 0, 0))) : 0;
        EACH(j, size) (*parameter(p, c, i))[j] = shape[1] ? limit * (2 * next_unit(&seed) - 1) : 1;  // gains draw nothing
    }
}

// ---------------------------------------------------------------- memory: an arena for each request, and each model

typedef struct Piece {
    struct Piece *next;
    max_align_t content[];
} Piece;

static Piece *request_memory;
static jmp_buf next_request;

static void *take(int64_t count, size_t size) {
    Piece *piece = NULL;
    if (count >= 0 && (uint64_t)count < (SIZE_MAX - sizeof *piece) / size) piece = calloc(1, sizeof *piece + count * size);
    if (!piece) refuse("resource", "there is no memory for %" PRId64 " values", count);
    piece->next = request_memory;
    request_memory = piece;
    return piece->content;
}

static void release(Piece *piece) {
    while (piece) {
        Piece *next = piece->next;
        free(piece);
        piece = next;
    }
}

// ---------------------------------------------------------------- reading a request: one flat JSON object

typedef struct {
    char *name, *value;  // a list's elements stand one after the other, each with its end
    char kind;           // 's' a string, 'n' a number or a truth value, 'l' a list of strings
    int64_t count;       // of a list
} Field;

static Field fields[64];
static int64_t field_count, request_id;
static char *cursor;

static void unreadable(const char *why) {  // what cannot be read cannot be answered either
    fprintf(stderr, "decoder: a request cannot be read: %s\n", why);
    exit(1);
}

static char *read_line(void) {
    static char *line;
    static size_t room;
    size_t length = 0;
    for (int c; (c = getchar()) != '\n'; line[length++] = (char)c) {
        if (c == EOF) exit(0);  // the suite has closed our standard input: we are done
        if (length + 2 > room && !(line = realloc(line, room = 2 * room + 4096))) unreadable("no memory");
    }
    if (!line) unreadable("an empty line");
    line[length] = 0;
    return line;
}

static char peek(void) {
    while (*cursor == ' ') cursor++;
    return *cursor;
}

static void expect(char c) {
    if (peek() != c) unreadable(cursor);
    cursor++;
}

// A string at the cursor, unescaped in place.
static char *read_string(void) {
    expect('"');
    char *start = cursor, *to = cursor;
    for (; *cursor != '"'; cursor++) {
        if (!*cursor) unreadable("a string without an end");
        if (*cursor == '\\' && *++cursor == 'u') {  // only ASCII is ever told apart here
            *to++ = '?', cursor += 4;
            continue;
        }
        *to++ = *cursor;
    }
    cursor++;
    *to = 0;
    return start;
}

// A number, true or false: moved back by one place, where the colon stood, to make room for its end.
static char *read_word(void) {
    size_t length = strcspn(cursor, ",}] ");
    char *start = memmove(cursor - 1, cursor, length);
    cursor += length;
    start[length] = 0;
    return start;
}

static void read_value(Field *field) {
    field->kind = peek() == '"' ? 's' : peek() == '[' ? 'l' : 'n';
    if (field->kind != 'l') {
        field->value = field->kind == 's' ? read_string() : read_word();
        return;
    }
    char *to = field->value = ++cursor;
    for (field->count = 0; peek() != ']'; field->count++) {
        char *element = read_string();
        size_t size = strlen(element) + 1;
        memmove(to, element, size), to += size;
        if (peek() == ',') cursor++;
    }
    cursor++;
}

static void read_message(void) {
    cursor = read_line();
    field_count = 0;
    expect('{');
    while (peek() != '}') {
        if (field_count == 64) unreadable("too many fields");
        Field *field = &fields[field_count++];
        field->name = read_string();
        expect(':');
        read_value(field);
        if (peek() == ',') cursor++;
    }
}

static Field *find(const char *name) {
    EACH(i, field_count) if (!strcmp(fields[i].name, name)) return &fields[i];
    return NULL;
}

static char *word(const char *name) {
    Field *field = find(name);
    return field && field->kind != 'l' ? field->value : "";
}

// ---------------------------------------------------------------- arrays in a request: the suite sends float64 and int64

typedef struct {
    char *name;
    char dtype;  // 'f' or 'i'
    int64_t rank, shape[8], size;
    double *real;
    int64_t *integer;
} Array;

static Array *arrays;
static int64_t array_count;
static const char *encoding = "raw";

static int digit(char c) {
    const char *digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", *at = strchr(digits, c);
    return c && at ? (int)(at - digits) : -1;
}

// [raw reader]
static char *read_raw(char *data, void *values, size_t bytes) {
    if (fread(values, 1, bytes, stdin) != bytes) unreadable("values are missing");
    return data;
}
// [end]

// [base64 reader]
static char *read_base64(char *data, void *values, size_t bytes) {
    unsigned char *to = values, *end = to + bytes;
    uint32_t bits = 0;
    for (int have = 0; to < end; data++) {
        if (digit(*data) < 0) unreadable("values are missing");
        bits = bits << 6 | (uint32_t)digit(*data);
        if ((have += 6) >= 8) *to++ = (unsigned char)(bits >> (have -= 8));
    }
    while (*data == '=') data++;
    return *data == ' ' ? data + 1 : data;  // one blank before the next array
}
// [end]

// [hex reader]
static char *read_hex(char *data, double *real, int64_t *integer, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        if (real) real[i] = strtod(data, &data);  // it knows 0x1.8p+1, nan and inf
        else integer[i] = strtoll(data, &data, 10);
    }
    return data;
}
// [end]

static char *read_array(Array *array, char *description, char *data) {
    array->name = strtok(description, " ");
    char *dtype = strtok(NULL, " ");
    array->dtype = dtype[0];
    array->size = 1;
    for (char *size; array->rank < 8 && (size = strtok(NULL, " ")); array->rank++)
        array->size *= array->shape[array->rank] = strtoll(size, NULL, 10);
    void *values = take(array->size, 8);
    if (array->dtype == 'f') array->real = values;
    else array->integer = values;
    if (!strcmp(encoding, "hex")) return read_hex(data, array->real, array->integer, array->size);
    return (!strcmp(encoding, "raw") ? read_raw : read_base64)(data, values, array->size * 8);
}

static void read_arrays(void) {
    Field *list = find("arrays");
    array_count = list ? list->count : 0;
    arrays = take(array_count, sizeof(Array));
    char *description = list ? list->value : NULL, *data = word("data");
    EACH(i, array_count) {
        char *next = description + strlen(description) + 1;
        data = read_array(&arrays[i], description, data);
        description = next;
    }
}

static Array *find_array(const char *name) {
    EACH(i, array_count) if (!strcmp(arrays[i].name, name)) return &arrays[i];
    return NULL;
}

// ---------------------------------------------------------------- writing a reply

typedef struct Result {
    const char *name;
    const double *values;
    int64_t rank, shape[8], size;
    struct Result *next;
} Result;

static Result *results, **last_result;

static void give(const char *name, const double *values, int64_t rank, const int64_t *shape) {
    Result *result = take(1, sizeof *result);
    *result = (Result){.name = name, .values = values, .rank = rank, .size = 1};
    EACH(i, rank) result->size *= result->shape[i] = shape[i];
    *last_result = result;
    last_result = &result->next;
}

static void give_lettered(const char *name, const double *values, const Config *c, const char *shape, int64_t B,
                          int64_t T) {
    int64_t sizes[8], rank = (int64_t)strlen(shape);
    EACH(i, rank) sizes[i] = axis(c, shape[i], B, T);
    give(name, values, rank, sizes);
}

static void write_string(const char *text) {
    putchar('"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') putchar('\\');
        putchar((unsigned char)*text < ' ' || (unsigned char)*text > '~' ? '?' : *text);
    }
    putchar('"');
}

// [raw writer]
static void write_raw(const double *values, int64_t count) { fwrite(values, 8, count, stdout); }
// [end]

// [base64 writer]
static void write_base64(const double *values, int64_t count) {
    const char *digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *bytes = (const unsigned char *)values;
    for (int64_t i = 0, size = 8 * count; i < size; i += 3) {
        uint32_t bits = (uint32_t)bytes[i] << 16;
        if (i + 1 < size) bits |= (uint32_t)bytes[i + 1] << 8;
        if (i + 2 < size) bits |= bytes[i + 2];
        putchar(digits[bits >> 18]);
        putchar(digits[bits >> 12 & 63]);
        putchar(i + 1 < size ? digits[bits >> 6 & 63] : '=');
        putchar(i + 2 < size ? digits[bits & 63] : '=');
    }
}
// [end]

// [hex writer]
static void write_hex(const double *values, int64_t count) {
    for (int64_t i = 0; i < count; i++) printf("%s%a", i ? " " : "", values[i]);  // it writes nan and inf as well
}
// [end]

static void write_values(void) {
    const char *between = "";
    for (Result *r = results; r; r = r->next) {
        if (!strcmp(encoding, "hex") && !r->size) continue;
        fputs(between, stdout), between = " ";
        (!strcmp(encoding, "hex") ? write_hex : write_base64)(r->values, r->size);
    }
}

static void reply(void) {
    int is_raw = !strcmp(encoding, "raw");
    printf("{\"id\": %" PRId64, request_id);
    if (results) {
        fputs(", \"arrays\": [", stdout);
        for (Result *r = results; r; r = r->next) {
            printf("%s\"%s float64", r == results ? "" : ", ", r->name);
            EACH(i, r->rank) printf(" %" PRId64, r->shape[i]);
            putchar('"');
        }
        putchar(']');
        if (!is_raw) fputs(", \"data\": \"", stdout), write_values(), putchar('"');
    }
    fputs("}\n", stdout);
    for (Result *r = is_raw ? results : NULL; r; r = r->next) write_raw(r->values, r->size);
}

// An error is a reply too; then on to the next request.
static void refuse(const char *category, const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    printf("{\"id\": %" PRId64 ", \"error\": ", request_id);
    write_string(text);
    if (category) printf(", \"category\": \"%s\"", category);
    fputs("}\n", stdout);
    longjmp(next_request, 1);
}

// ---------------------------------------------------------------- what is refused

static int64_t integer_field(const char *name, int64_t least) {
    char *text = word(name), *end;
    int64_t value = strtoll(text, &end, 10);
    if (!*text || *end || value < least)
        refuse("configuration", "%s must be an integer of at least %" PRId64 ", got %.40s", name, least, text);
    return value;
}

static double real_field(const char *name) {
    char *text = word(name), *end;
    double value = strtod(text, &end);
    if (!*text || *end || !isfinite(value) || value < 0)
        refuse("configuration", "%s must be finite and not negative, got %.40s", name, text);
    return value;
}

static uint64_t seed_field(void) {
    char *text = word("seed"), *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (!*text || *text == '-' || *end || errno) refuse("configuration", "seed must be 0 .. 2^64 - 1, got %.40s", text);
    return value;
}

static Config read_config(void) {
    Config c = {integer_field("vocabulary_size", 1), integer_field("model_width", 1), integer_field("heads", 1),
                integer_field("feed_forward_width", 1), integer_field("layers", 0), integer_field("max_positions", 1),
                real_field("rope_base"), real_field("rms_epsilon")};
    if (c.d % c.h || c.d / c.h % 2)
        refuse("configuration", "model_width %" PRId64 " must be %" PRId64 " heads of an even width", c.d, c.h);
    if (c.rope_base == 0) refuse("configuration", "rope_base must be positive, got 0");
    double d = (double)c.d, in_layer = 4 * d * d + 3 * d * (double)c.f + 2 * d;  // in doubles, which do not wrap around
    double scalars = (double)c.V * d + (double)c.N * in_layer + d;
    if (scalars > 0x1p40) refuse("resource", "%g parameters are more than 2^40", scalars);
    return c;
}

// The values of an array that must be one parameter.
static double *checked(const Array *array, const char *name, const Config *c, const char *shape) {
    int64_t rank = (int64_t)strlen(shape);
    if (!array) refuse("parameters", "%s is missing", name);
    if (array->dtype != 'f') refuse("parameters", "%s must be float64", name);
    int fits = array->rank == rank;
    EACH(i, fits ? rank : 0) fits = fits && array->shape[i] == axis(c, shape[i], 0, 0);
    if (!fits) refuse("parameters", "%s does not have the shape [%s]", name, shape);
    EACH(i, array->size) if (!isfinite(array->real[i])) refuse("parameters", "%s is not finite", name);
    return array->real;
}

static Parameters checked_parameters(const Config *c) {
    EACH(i, parameter_count(c)) {  // names first: the first one missing ends the walk, however many layers are claimed
        char *name = parameter_name(c, i);
        checked(find_array(name), name, c, parameter_shape(c, i));
    }
    if (array_count != parameter_count(c))
        refuse("parameters", "%" PRId64 " tensors came, there are %" PRId64 " parameters", array_count, parameter_count(c));
    Parameters p = {NULL, take(c->N, sizeof(Layer)), NULL};
    EACH(i, array_count) *parameter(&p, c, i) = find_array(parameter_name(c, i))->real;
    return p;
}

static void check_ids(const Array *ids, const char *category, int64_t V) {
    EACH(i, ids->size) if (ids->integer[i] < 0 || ids->integer[i] >= V)
        refuse(category, "%s: id %" PRId64 " is not in 0 .. %" PRId64, ids->name, ids->integer[i], V - 1);
}

// Token ids [B, T], and target ids where they are asked for: shape, context, targets, and only then the token ids.
static const Array *read_tokens(const Config *c, const Array **targets) {
    const Array *tokens = find_array("tokens");
    if (!tokens || tokens->dtype != 'i' || tokens->rank != 2 || !tokens->size)
        refuse("token_shape", "tokens must be int64 [B, T] and not empty");
    if (tokens->shape[1] > c->max_positions)
        refuse("context", "%" PRId64 " tokens are more than %" PRId64, tokens->shape[1], c->max_positions);
    if (targets) {
        const Array *y = *targets = find_array("targets");
        int alike = y && y->rank == 2 && y->shape[0] == tokens->shape[0] && y->shape[1] == tokens->shape[1];
        if (!y || y->dtype != 'i' || !(alike || (y->rank == 1 && y->size == tokens->size)))
            refuse("target_shape", "targets must be int64, one for each of the %" PRId64 " tokens", tokens->size);
        check_ids(y, "target_vocabulary", c->V);
    }
    check_ids(tokens, "vocabulary", c->V);
    return tokens;
}

// ---------------------------------------------------------------- the calls

typedef struct Model {
    int64_t number;
    Config config;
    Parameters parameters;
    Piece *memory;  // its own, this record included
    struct Model *next;
} Model;

static Model *models;

static Model *model(void) {
    int64_t number = strtoll(word("model"), NULL, 10);
    for (Model *m = models; m; m = m->next)
        if (m->number == number) return m;
    refuse(NULL, "there is no model %" PRId64, number);
    return NULL;
}

// A model keeps all memory of the request that made it, the arrays that came among it.
static void keep(Config config, Parameters parameters) {
    Model *m = take(1, sizeof *m);
    *m = (Model){strtoll(word("model"), NULL, 10), config, parameters, request_memory, models};
    models = m;
    request_memory = NULL;
}

static void call_start(void) {
    printf("{\"id\": %" PRId64 ", \"protocol\": 1, \"name\": \"decoder.c\", \"encoding\": \"%s\", "
           "\"precision\": \"float64\", \"offers\": [\"logits\", \"stages\", \"loss\", \"gradients\", "
           "\"role_gradients\", \"parameters\", \"assign\", \"initialize\", \"classify\", \"rms_norm\", "
           "\"rms_norm_backward\", \"block\", \"block_backward\"]}\n", request_id, encoding);
    longjmp(next_request, 1);
}

static void call_build(void) {
    Config c = read_config();
    keep(c, checked_parameters(&c));
}

static void call_initialize(void) {
    Config c = read_config();
    uint64_t seed = seed_field();
    Parameters p = zeros(&c);
    initialize(&p, &c, seed);
    keep(c, p);
}

static void call_close(void) {
    Model *gone = model(), **link = &models;
    while (*link != gone) link = &(*link)->next;
    *link = gone->next;
    release(gone->memory);
}

static void call_logits(void) {
    Model *m = model();
    const Array *z = read_tokens(&m->config, NULL);
    Stages s = decoder(&m->config, &m->parameters, z->integer, z->shape[0], z->shape[1]);
    give_lettered("logits", s.logits, &m->config, "BTV", z->shape[0], z->shape[1]);
}

static void call_stages(void) {
    Model *m = model();
    const Config *c = &m->config;
    const Array *z = read_tokens(c, NULL);
    int64_t B = z->shape[0], T = z->shape[1];
    Stages s = decoder(c, &m->parameters, z->integer, B, T);
    give_lettered("embedding", s.embedding, c, "BTd", B, T);
    EACH(n, c->N) EACH(i, IN_BLOCK) {
        char *name = take(64, 1);
        snprintf(name, 64, "blocks.%" PRId64 ".%s", n, BLOCK[i].name);
        give_lettered(name, ((double **)&s.blocks[n])[i], c, BLOCK[i].shape, B, T);
    }
    give_lettered("final_norm", s.final_norm, c, "BTd", B, T);
    give_lettered("logits", s.logits, c, "BTV", B, T);
}

static void call_loss(void) {
    Model *m = model();
    const Array *y, *z = read_tokens(&m->config, &y);
    Stages s = decoder(&m->config, &m->parameters, z->integer, z->shape[0], z->shape[1]);
    double *loss = doubles(1);
    *loss = nll(s.logits, y->integer, z->size, m->config.V);
    give("loss", loss, 0, NULL);
}

static void give_parameters(const Parameters *p, const Config *c) {
    EACH(i, parameter_count(c)) give_lettered(parameter_name(c, i), *parameter(p, c, i), c, parameter_shape(c, i), 0, 0);
}

static void call_gradients(void) {
    Model *m = model();
    const Config *c = &m->config;
    const Array *y, *z = read_tokens(c, &y);
    Parameters g = zeros(c);
    decoder_backward(c, &g, g.table, &m->parameters, z->integer, y->integer, z->shape[0], z->shape[1]);
    give_parameters(&g, c);  // one table in two roles: both were added to its gradient
}

static void call_role_gradients(void) {
    Model *m = model();
    const Config *c = &m->config;
    const Array *y, *z = read_tokens(c, &y);
    Parameters g = zeros(c);
    double *head = doubles(c->V * c->d);
    decoder_backward(c, &g, head, &m->parameters, z->integer, y->integer, z->shape[0], z->shape[1]);
    give_lettered("lookup", g.table, c, "Vd", 0, 0);
    give_lettered("head", head, c, "Vd", 0, 0);
}

static void call_parameters(void) {
    Model *m = model();
    give_parameters(&m->parameters, &m->config);
}

static void call_assign(void) {
    Model *m = model();
    EACH(i, parameter_count(&m->config)) {
        char *name = parameter_name(&m->config, i);
        if (!find_array(name)) continue;
        double *values = checked(find_array(name), name, &m->config, parameter_shape(&m->config, i));
        memcpy(*parameter(&m->parameters, &m->config, i), values, find_array(name)->size * sizeof(double));
        return;
    }
    refuse("parameters", "assign names no parameter");
}

// ---------------------------------------------------------------- one operation, or one block, on its own

static const Array *real_array(const char *name) {
    const Array *array = find_array(name);
    if (!array || array->dtype != 'f' || !array->rank) refuse(NULL, "%s must be a float64 array", name);
    return array;
}

static void call_rms_norm(void) {
    const Array *x = real_array("x"), *gain = real_array("gain");
    double *y = doubles(x->size);
    rms_norm(y, x->real, gain->real, real_field("epsilon"), x->size / gain->size, gain->size);
    give("output", y, x->rank, x->shape);
}

static void call_rms_norm_backward(void) {
    const Array *dy = real_array("upstream"), *x = real_array("x"), *gain = real_array("gain");
    double *dx = doubles(x->size), *dgain = doubles(gain->size);
    rms_norm_backward(dx, dgain, dy->real, x->real, gain->real, real_field("epsilon"), x->size / gain->size, gain->size);
    give("x", dx, x->rank, x->shape);
    give("gain", dgain, gain->rank, gain->shape);
}

static Layer block_parameters(const Config *c) {
    Layer p;
    EACH(i, IN_LAYER) ((double **)&p)[i] = checked(find_array(LAYER[i].name), LAYER[i].name, c, LAYER[i].shape);
    return p;
}

static void call_block(void) {
    Config c = read_config();
    Layer p = block_parameters(&c);
    const Array *x = real_array("x");
    BlockStages s = block(&c, &p, x->real, integer_field("offset", 0), x->shape[0], x->shape[1]);
    give("output", s.output, x->rank, x->shape);
}

static void call_block_backward(void) {
    Config c = read_config();
    Layer p = block_parameters(&c), g;
    const Array *x = real_array("x"), *dy = real_array("upstream");
    int64_t offset = integer_field("offset", 0);
    EACH(i, IN_LAYER) ((double **)&g)[i] = doubles(size_of(&c, LAYER[i].shape, 0, 0));
    BlockStages s = block(&c, &p, x->real, offset, x->shape[0], x->shape[1]);
    give("x", block_backward(&c, &g, dy->real, &p, &s, x->real, offset, x->shape[0], x->shape[1]), x->rank, x->shape);
    EACH(i, IN_LAYER) give_lettered(LAYER[i].name, ((double **)&g)[i], &c, LAYER[i].shape, 0, 0);
}

static const struct {
    const char *name;
    void (*answer)(void);
} CALLS[] = {
    {"start", call_start}, {"build", call_build}, {"initialize", call_initialize}, {"close", call_close},
    {"logits", call_logits}, {"stages", call_stages}, {"loss", call_loss}, {"gradients", call_gradients},
    {"role_gradients", call_role_gradients}, {"parameters", call_parameters}, {"assign", call_assign},
    {"rms_norm", call_rms_norm}, {"rms_norm_backward", call_rms_norm_backward},
    {"block", call_block}, {"block_backward", call_block_backward},
};

static void answer(void) {
    EACH(i, (int64_t)(sizeof CALLS / sizeof CALLS[0])) {
        if (strcmp(word("call"), CALLS[i].name)) continue;
        CALLS[i].answer();
        reply();
        return;
    }
    refuse(NULL, "there is no call %.40s", word("call"));
}

int main(int count, char **arguments) {
    if (count > 1) encoding = arguments[1];
    for (;;) {
        release(request_memory);
        request_memory = NULL;
        results = NULL, last_result = &results;
        fflush(stdout);
        read_message();
        request_id = strtoll(word("id"), NULL, 10);
        if (!setjmp(next_request)) {
            read_arrays();
            answer();
        }
    }
}
