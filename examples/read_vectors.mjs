// A decoder in plain JavaScript, and a reader that holds it against the test vectors of decoderspec.
//
//     decoderspec vectors vectors/ && node read_vectors.mjs vectors/
//
// Nothing but Node is needed. To test a decoder of your own, replace the second part and keep the third; the rules
// are the words under "judgement" in every file. The first thing that fails in a case is printed; exit status 1.

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";

// --- 1. Arrays: row-major float64 beside a shape ---

const count = (shape) => shape.reduce((product, length) => product * length, 1);
const zeros = (shape) => ({ shape, values: new Float64Array(count(shape)) });
const array = (entry) => ({ shape: entry.shape, values: Float64Array.from(entry.values) });
const last = (x, back = 1) => x.shape[x.shape.length - back];
const map = (x, f) => ({ shape: x.shape, values: x.values.map(f) });
const plus = (x, y) => map(x, (value, i) => value + y.values[i]);

function transposed(w) {
  const [rows, columns] = w.shape, y = zeros([columns, rows]);
  for (let i = 0; i < rows; i++)
    for (let j = 0; j < columns; j++) y.values[j * rows + i] = w.values[i * columns + j];
  return y;
}

// --- 2. The decoder: operations with their pullbacks right below, then their composition ---

const embed = {
  forward(table, tokens) { // x = E[z]: [V, d] at [B, T] is [B, T, d]
    const d = last(table), x = zeros([tokens.length, tokens[0].length, d]);
    tokens.flat().forEach((id, at) => x.values.set(table.values.subarray(id * d, (id + 1) * d), at * d));
    return x;
  },
  backward(dx, table, tokens) { // every use of a row adds to it
    const d = last(table), dtable = zeros(table.shape);
    tokens.flat().forEach((id, at) => {
      for (let i = 0; i < d; i++) dtable.values[id * d + i] += dx.values[at * d + i];
    });
    return [dtable];
  },
};

const rmsNorm = {
  root(x, at, d, epsilon) {
    let sum = 0;
    for (let i = at; i < at + d; i++) sum += x.values[i] ** 2;
    return 1 / Math.sqrt(sum / d + epsilon);
  },
  forward(x, gain, epsilon) { // x (mean(x^2) + epsilon)^(-1/2) g
    const d = last(x), y = zeros(x.shape);
    for (let at = 0; at < y.values.length; at += d) {
      const r = this.root(x, at, d, epsilon);
      for (let i = 0; i < d; i++) y.values[at + i] = x.values[at + i] * r * gain.values[i];
    }
    return y;
  },
  backward(dy, x, gain, epsilon) { // with n = x r, dn = dy g: dx = r (dn - n mean(dn n)), dg = sum dy n
    const d = last(x), dx = zeros(x.shape), dgain = zeros(gain.shape);
    for (let at = 0; at < dx.values.length; at += d) {
      const r = this.root(x, at, d, epsilon);
      let mean = 0;
      for (let i = 0; i < d; i++) mean += (dy.values[at + i] * gain.values[i] * x.values[at + i] * r) / d;
      for (let i = 0; i < d; i++) {
        const n = x.values[at + i] * r;
        dx.values[at + i] = r * (dy.values[at + i] * gain.values[i] - n * mean);
        dgain.values[i] += dy.values[at + i] * n;
      }
    }
    return [dx, dgain];
  },
};

const linear = {
  forward(x, w) { // x @ W
    const [n, m] = w.shape, y = zeros([...x.shape.slice(0, -1), m]);
    for (let row = 0; row < x.values.length / n; row++)
      for (let j = 0; j < m; j++)
        for (let i = 0; i < n; i++) y.values[row * m + j] += x.values[row * n + i] * w.values[i * m + j];
    return y;
  },
  backward(dy, x, w) { // dx = dy @ W^T, dW = x^T @ dy
    const [n, m] = w.shape, dw = zeros(w.shape);
    for (let row = 0; row < x.values.length / n; row++)
      for (let i = 0; i < n; i++)
        for (let j = 0; j < m; j++) dw.values[i * m + j] += x.values[row * n + i] * dy.values[row * m + j];
    return [linear.forward(dy, transposed(w)), dw];
  },
};

const project = {
  forward: (x, table) => linear.forward(x, transposed(table)), // x @ E^T
  backward(dy, x, table) {
    const [dx, dw] = linear.backward(dy, x, transposed(table));
    return [dx, transposed(dw)];
  },
};

function moveHeads(x, shape, splitting) { // between [B, T, d] and [B, h, T, w]
  const y = zeros(shape), [B, h, T, w] = splitting ? shape : x.shape;
  for (let b = 0, at = 0; b < B; b++)
    for (let head = 0; head < h; head++)
      for (let t = 0; t < T; t++)
        for (let i = 0; i < w; i++, at++) {
          const flat = ((b * T + t) * h + head) * w + i;
          if (splitting) y.values[at] = x.values[flat];
          else y.values[flat] = x.values[at];
        }
  return y;
}
const split = { // head j is the j-th contiguous slice
  forward: (x, h) => moveHeads(x, [x.shape[0], h, x.shape[1], x.shape[2] / h], true),
  backward: (dy) => [merge.forward(dy)],
};
const merge = {
  forward: (x) => moveHeads(x, [x.shape[0], x.shape[2], x.shape[1] * x.shape[3]], false),
  backward: (dy, x) => [split.forward(dy, x.shape[1])],
};

const rotate = {
  forward(x, base, offset, sign = 1) { // adjacent pairs (a, b) by the angle p base^(-2i/w)
    const w = last(x), T = last(x, 2), y = zeros(x.shape);
    for (let at = 0; at < y.values.length; at += 2) {
      const angle = (offset + (Math.floor(at / w) % T)) * base ** (-(at % w) / w);
      const cos = Math.cos(angle), sin = sign * Math.sin(angle), a = x.values[at], b = x.values[at + 1];
      y.values[at] = a * cos - b * sin;
      y.values[at + 1] = a * sin + b * cos;
    }
    return y;
  },
  backward: (dy, x, base, offset) => [rotate.forward(dy, base, offset, -1)],
};

const weights = {
  forward(q, k) { // softmax over the keys up to the query of q . k / sqrt(w): [B, h, T, T]
    const w = last(q), T = last(q, 2), p = zeros([...q.shape.slice(0, -1), T]);
    for (let row = 0; row < p.values.length / T; row++) {
      const first = Math.floor(row / T) * T, seen = (row % T) + 1, scores = [];
      for (let s = 0; s < seen; s++) {
        let dot = 0;
        for (let i = 0; i < w; i++) dot += q.values[row * w + i] * k.values[(first + s) * w + i];
        scores.push(dot / Math.sqrt(w));
      }
      const powers = scores.map((score) => Math.exp(score - Math.max(...scores)));
      const sum = powers.reduce((total, power) => total + power, 0);
      powers.forEach((power, s) => { p.values[row * T + s] = power / sum; });
    }
    return p;
  },
  backward(dp, q, k) { // ds = p (dp - sum(p dp)) / sqrt(w), dq = ds @ k, dk = ds^T @ q
    const w = last(q), T = last(q, 2), p = this.forward(q, k), dq = zeros(q.shape), dk = zeros(k.shape);
    for (let row = 0; row < p.values.length / T; row++) {
      const first = Math.floor(row / T) * T;
      let inner = 0;
      for (let s = 0; s < T; s++) inner += p.values[row * T + s] * dp.values[row * T + s];
      for (let s = 0; s < T; s++) {
        const ds = (p.values[row * T + s] * (dp.values[row * T + s] - inner)) / Math.sqrt(w);
        for (let i = 0; i < w; i++) {
          dq.values[row * w + i] += ds * k.values[(first + s) * w + i];
          dk.values[(first + s) * w + i] += ds * q.values[row * w + i];
        }
      }
    }
    return [dq, dk];
  },
};

const mix = {
  forward(p, v) { // values averaged by the weights
    const w = last(v), T = last(v, 2), o = zeros(v.shape);
    for (let row = 0; row < p.values.length / T; row++)
      for (let s = 0; s < T; s++)
        for (let i = 0; i < w; i++)
          o.values[row * w + i] += p.values[row * T + s] * v.values[(Math.floor(row / T) * T + s) * w + i];
    return o;
  },
  backward(dout, p, v) { // dp = do @ v^T, dv = p^T @ do
    const w = last(v), T = last(v, 2), dp = zeros(p.shape), dv = zeros(v.shape);
    for (let row = 0; row < p.values.length / T; row++)
      for (let s = 0; s < T; s++)
        for (let i = 0; i < w; i++) {
          const at = (Math.floor(row / T) * T + s) * w + i;
          dp.values[row * T + s] += dout.values[row * w + i] * v.values[at];
          dv.values[at] += p.values[row * T + s] * dout.values[row * w + i];
        }
    return [dp, dv];
  },
};

function sigmoid(x) { // through exp(-|x|), so that nothing overflows
  const e = Math.exp(-Math.abs(x));
  return (x < 0 ? e : 1) / (1 + e);
}
const silu = {
  forward: (x) => map(x, (value) => value * sigmoid(value)),
  backward: (dy, x) => [map(x, (v, i) => dy.values[i] * (sigmoid(v) + v * sigmoid(v) * sigmoid(-v)))],
};
const multiply = {
  forward: (a, b) => map(a, (value, i) => value * b.values[i]),
  backward: (dy, a, b) => [multiply.forward(dy, b), multiply.forward(dy, a)],
};
const add = { forward: plus, backward: (dy) => [dy, dy] };

const nll = {
  rows(logits) { // maximum and sum of exponentials of each row
    const V = last(logits);
    return Array.from({ length: logits.values.length / V }, (_, row) => {
      const values = logits.values.subarray(row * V, (row + 1) * V), top = Math.max(...values);
      return { values, top, sum: values.reduce((total, value) => total + Math.exp(value - top), 0) };
    });
  },
  forward(logits, targets) { // mean over all positions of -log softmax(logits)[target]
    const wanted = targets.flat();
    const losses = this.rows(logits).map(({ values, top, sum }, row) => Math.log(sum) - (values[wanted[row]] - top));
    return { shape: [], values: Float64Array.of(losses.reduce((total, loss) => total + loss, 0) / losses.length) };
  },
  backward(dloss, logits, targets) { // (softmax - onehot) / (B T)
    const V = last(logits), dlogits = zeros(logits.shape), rows = this.rows(logits);
    rows.forEach(({ values, top, sum }, row) => {
      for (let j = 0; j < V; j++) {
        const p = Math.exp(values[j] - top) / sum;
        dlogits.values[row * V + j] = ((p - (targets.flat()[row] === j ? 1 : 0)) * dloss.values[0]) / rows.length;
      }
    });
    return [dlogits];
  },
};

// Compositions take `run(stage, operation, ...inputs)`, which computes, notes stages or records for the pullback.

function attend(run, q, k, v, at = "") {
  return run(`${at}heads`, mix, run(`${at}weights`, weights, q, k), v);
}

function swiglu(run, gate, up, at = "") {
  return run(`${at}product`, multiply, run(`${at}silu`, silu, gate), up);
}

function block(run, config, p, x, offset, at = "") {
  const n = run(`${at}attention_norm`, rmsNorm, x, p["attention_norm.gain"], config.rms_epsilon);
  const [q, k, v] = ["query", "key", "value"].map((role) =>
    run(`${at}attention.${role}`, split, run("", linear, n, p[`attention.${role}.weight`]), config.heads));
  const rotated = [["query", q], ["key", k]].map(([role, y]) =>
    run(`${at}attention.rotated_${role}`, rotate, y, config.rope_base, offset));
  const merged = run(`${at}attention.merged`, merge, attend(run, ...rotated, v, `${at}attention.`));
  const output = run(`${at}attention.output`, linear, merged, p["attention.output.weight"]);
  const after = run(`${at}after_attention`, add, x, output);
  const m = run(`${at}ffn_norm`, rmsNorm, after, p["ffn_norm.gain"], config.rms_epsilon);
  const gate = run(`${at}ffn.gate`, linear, m, p["ffn.gate.weight"]);
  const up = run(`${at}ffn.up`, linear, m, p["ffn.up.weight"]);
  const down = run(`${at}ffn.output`, linear, swiglu(run, gate, up, `${at}ffn.`), p["ffn.down.weight"]);
  return run(`${at}output`, add, after, down);
}

function decoder(run, config, p, tokens, head = p["token_embedding.weight"]) {
  let x = run("embedding", embed, p["token_embedding.weight"], tokens);
  for (let layer = 0; layer < config.layers; layer++) {
    const at = `blocks.${layer}.`, names = Object.keys(p).filter((name) => name.startsWith(at));
    x = block(run, config, Object.fromEntries(names.map((name) => [name.slice(at.length), p[name]])), x, 0, at);
  }
  const n = run("final_norm", rmsNorm, x, p["final_norm.gain"], config.rms_epsilon);
  return run("logits", project, n, head);
}

class Tape { // records operations; `pullback` gives the gradient of every array that took part
  steps = [];
  run = (_stage, operation, ...inputs) => {
    const output = operation.forward(...inputs);
    this.steps.push({ operation, inputs, output });
    return output;
  };
  pullback(upstream) {
    const gradients = new Map([[this.steps[this.steps.length - 1].output, upstream]]);
    for (const { operation, inputs, output } of this.steps.reverse())
      operation.backward(gradients.get(output), ...inputs).forEach((gradient, i) => {
        const known = gradients.get(inputs[i]);
        gradients.set(inputs[i], known ? plus(known, gradient) : gradient);
      });
    return gradients;
  }
}
const compute = (_stage, operation, ...inputs) => operation.forward(...inputs);

class Model {
  constructor(config, parameters) { Object.assign(this, { config, p: { ...parameters } }); }
  logits(tokens) { return decoder(compute, this.config, this.p, tokens); }
  stages(tokens) {
    const noted = {};
    decoder((stage, ...rest) => (noted[stage] = compute(stage, ...rest)), this.config, this.p, tokens);
    return noted;
  }
  loss(tokens, targets) { return nll.forward(this.logits(tokens), targets); }
  pulled(tokens, targets, head) {
    const tape = new Tape();
    tape.run("loss", nll, decoder(tape.run, this.config, this.p, tokens, head), targets);
    return tape.pullback({ shape: [], values: Float64Array.of(1) });
  }
  gradients(tokens, targets) {
    const found = this.pulled(tokens, targets);
    return Object.fromEntries(Object.entries(this.p).map(([name, value]) => [name, found.get(value)]));
  }
  roleGradients(tokens, targets) { // with a copy as the head, each role has an array of its own
    const table = this.p["token_embedding.weight"], head = map(table, (value) => value);
    const found = this.pulled(tokens, targets, head);
    return { lookup: found.get(table), head: found.get(head) };
  }
  assign(name, value) { this.p[name].values.set(value.values); }
}

const shapesOf = ({ vocabulary_size: V, model_width: d, feed_forward_width: f, layers }) => {
  const block = { "attention_norm.gain": [d], "attention.query.weight": [d, d], "attention.key.weight": [d, d],
    "attention.value.weight": [d, d], "attention.output.weight": [d, d], "ffn_norm.gain": [d],
    "ffn.gate.weight": [d, f], "ffn.up.weight": [d, f], "ffn.down.weight": [f, d] };
  const ofBlocks = Array.from({ length: layers }, (_, n) =>
    Object.entries(block).map(([name, shape]) => [`blocks.${n}.${name}`, shape]));
  return [["token_embedding.weight", [V, d]], ...ofBlocks.flat(), ["final_norm.gain", [d]]];
};

function* splitMix64(state) { // Steele, Lea and Flood 2014
  const cut = (value) => BigInt.asUintN(64, value);
  for (;;) {
    state = cut(state + 0x9e3779b97f4a7c15n);
    let v = cut((state ^ (state >> 30n)) * 0xbf58476d1ce4e5b9n);
    v = cut((v ^ (v >> 27n)) * 0x94d049bb133111ebn);
    yield v ^ (v >> 31n);
  }
}

function initialized(config, seed) {
  const words = splitMix64(seed);
  return Object.fromEntries(shapesOf(config).map(([name, shape]) => {
    if (shape.length === 1) return [name, map(zeros(shape), () => 1)];
    const limit = Math.sqrt(6 / (shape[0] + shape[1]));
    return [name, map(zeros(shape), () => limit * (2 * (Number(words.next().value >> 11n) * 2 ** -53) - 1))];
  }));
}

// What must be refused: the category, or nothing where the input is taken.

const same = (a, b) => a.length === b.length && a.every((value, i) => value === b[i]);
const integer = (value) => Number.isInteger(value); // of any other type: false
const within = (rows, size) => rows.flat().every((id) => id >= 0 && id < size);

function refusedConfig(config) {
  const { vocabulary_size: V, model_width: d, heads: h, feed_forward_width: f, layers: N, max_positions: T } = config;
  const { rope_base: base, rms_epsilon: epsilon } = config;
  if (![V, d, h, f, T].every((size) => integer(size) && size > 0) || !integer(N) || N < 0) return "configuration";
  if (d % h || (d / h) % 2 || !(base > 0 && base < Infinity)) return "configuration";
  if (!(epsilon >= 0 && epsilon < Infinity)) return "configuration";
  return V * d + N * (4 * d * d + 3 * d * f + 2 * d) + d > 2 ** 40 ? "resource" : undefined;
}

function refusedParameters(config, parameters) {
  const expected = shapesOf(config), names = expected.map(([name]) => name);
  if (!same(names.slice().sort(), Object.keys(parameters).sort())) return "parameters";
  const fits = ([name, shape]) => same(parameters[name].shape, shape) && parameters[name].values.every(Number.isFinite);
  return expected.every(fits) ? undefined : "parameters";
}

function refusedTokens(config, tokens) {
  const filled = (rows) => Array.isArray(rows) && rows.length > 0;
  if (!filled(tokens) || !tokens.every(filled)) return "token_shape";
  if (tokens.some((row) => row.length !== tokens[0].length || !row.every(integer))) return "token_shape";
  return tokens[0].length > config.max_positions ? "context" : undefined;
}

function refusedTargets(config, tokens, targets) {
  const lengths = (rows) => rows.map((row) => row.length);
  if (!same(lengths(targets), lengths(tokens)) || !targets.flat().every(integer)) return "target_shape";
  return within(targets, config.vocabulary_size) ? undefined : "target_vocabulary";
}

function refused(call, { config, parameters, tokens, targets }) { // in the order of the specification
  if (call === "build") return refusedConfig(config) ?? refusedParameters(config, parameters);
  const first = refusedTokens(config, tokens) ?? (call === "loss" && refusedTargets(config, tokens, targets));
  return first || (within(tokens, config.vocabulary_size) ? undefined : "vocabulary");
}

// --- 3. The judge, and what it asks of each kind of file ---

class Wrong extends Error {}
const precision = process.argv[3] ?? "float64";

function judge(what, got, expected) {
  const allowed = { worst: expected.worst, mean: expected.mean[precision] };
  if (!same(got.shape, expected.shape))
    throw new Wrong(`${what} has shape [${got.shape}], expected [${expected.shape}]`);
  const ratios = expected.values.map((text, i) => {
    const error = Math.abs(got.values[i] - Number(text) - expected.rest[i]);
    const ratio = error === 0 ? 0 : error / expected.noise[precision][i];
    return Number.isNaN(ratio) ? Infinity : ratio;
  });
  const i = ratios.findIndex((ratio) => ratio > allowed.worst);
  if (i >= 0) {
    const values = `${what}[${i}] is ${got.values[i]}, expected ${expected.values[i]}`;
    throw new Wrong(`${values}: ${ratios[i].toPrecision(3)} x noise (${allowed.worst} allowed)`);
  }
  const mean = Math.sqrt(ratios.reduce((sum, ratio) => sum + ratio ** 2, 0) / ratios.length);
  if (mean > allowed.mean)
    throw new Wrong(`${what} is off by ${mean.toPrecision(3)} x noise in the mean (${allowed.mean} allowed)`);
}

function judgeAll(what, got, expected) {
  for (const [name, each] of Object.entries(expected)) judge(`${what} ${name}`, got[name], each);
}

function judgeSlopes(gradients, expected) {
  const slope = (x) => x.values.reduce((sum, value, i) => sum + (i % 2 ? -value : value), 0);
  const slopes = Object.fromEntries(Object.entries(gradients).map(([name, value]) => [name, slope(value)]));
  slopes.all = Object.values(slopes).reduce((sum, value) => sum + value, 0);
  for (const [name, each] of Object.entries(expected))
    judge(`slope ${name}`, { shape: [], values: [slopes[name]] }, each);
}

function sameBits(what, got, before, elements = [[0, before.values.length]]) {
  for (const [from, to] of elements)
    for (let i = from; i < to; i++)
      if (!Object.is(got.values[i], before.values[i]))
        throw new Wrong(`${what}[${i}] is ${got.values[i]}, and was ${before.values[i]}`);
}

const KERNELS = { // with a `run` in front, as the compositions
  embed: (run, ...inputs) => run("", embed, ...inputs),
  rms_norm: (run, ...inputs) => run("", rmsNorm, ...inputs),
  linear: (run, ...inputs) => run("", linear, ...inputs),
  rotate: (run, ...inputs) => run("", rotate, ...inputs),
  silu: (run, ...inputs) => run("", silu, ...inputs),
  add: (run, ...inputs) => run("", add, ...inputs),
  project: (run, ...inputs) => run("", project, ...inputs),
  nll: (run, ...inputs) => run("", nll, ...inputs),
  attend, swiglu, block,
};
const arrays = (entries) => Object.fromEntries(Object.entries(entries).map(([name, entry]) => [name, array(entry)]));

function operationInputs(inputs) {
  const read = ([name, entry]) => name === "parameters" ? arrays(entry) : entry?.shape ? array(entry) : entry;
  return Object.fromEntries(Object.entries(inputs).map((pair) => [pair[0], read(pair)]));
}

function operationCase(document, item, kept) {
  const kernel = KERNELS[document.operation], inputs = operationInputs(item.inputs), given = Object.values(inputs);
  const output = kernel(compute, ...given);
  kept[item.id] = output;
  sameBits("output of a second call", kernel(compute, ...given), output);
  judge("output", output, item.expected.output);
  if (item.same) sameBits("output", output, kept[item.same.as], item.same.elements);
  if (item.upstream) {
    const tape = new Tape(), leaves = { ...inputs, ...inputs.parameters };
    kernel(tape.run, ...given);
    const found = tape.pullback(array(item.upstream));
    const names = Object.keys(item.expected.gradients);
    const gradients = Object.fromEntries(names.map((name) => [name, found.get(leaves[name])]));
    judgeAll("gradient", gradients, item.expected.gradients);
    judgeSlopes(gradients, item.expected.slopes);
  }
  const untouched = operationInputs(item.inputs);
  for (const [name, value] of Object.entries(untouched))
    if (value.shape) sameBits(`input ${name}`, inputs[name], value);
}

function modelCase(document, item) {
  const models = {}, given = {}, answers = [];
  const of = (id) => {
    if (!models[id]) {
      const { config, parameters } = document.cases.find((each) => each.id === id);
      [models[id], given[id]] = [new Model(config, arrays(parameters)), arrays(parameters)];
    }
    return models[id];
  };
  for (const call of item.calls) answers.push(answered(of(call.model ?? item.id), call, given[call.model ?? item.id]));
  item.calls.forEach((call, place) => { // judged when all have been made: what is kept must still be there
    const expected = item.calls[call.again ?? place].expected ?? {}, got = answers[place], at = `call ${place}:`;
    for (const name of ["logits", "loss", "sum"])
      if (expected[name]) judge(`${at} ${name}`, got[name], expected[name]);
    for (const name of ["stages", "gradients"])
      if (expected[name]) judgeAll(`${at} ${name}`, got[name], expected[name]);
    if (expected.slopes) judgeSlopes(got.gradients, expected.slopes);
    if (call.same) sameBits(`${at} logits`, got.logits, answers[call.same.as].logits, call.same.elements);
  });
}

function answered(model, call, given) {
  const tokens = structuredClone(call.tokens), targets = structuredClone(call.targets);
  const answer = {
    logits: () => ({ logits: model.logits(tokens) }),
    stages: () => ({ stages: model.stages(tokens) }),
    loss: () => ({ loss: model.loss(tokens, targets) }),
    gradients: () => ({ gradients: model.gradients(tokens, targets) }),
    role_gradients: () => {
      const gradients = model.roleGradients(tokens, targets);
      return { gradients, sum: plus(gradients.lookup, gradients.head) };
    },
    assign: () => {
      model.assign(call.name, array(call.value));
      given[call.name] = array(call.value);
      return {};
    },
    parameters: () => judgeParameters(model.p, given, call.expected),
  }[call.call]();
  if (JSON.stringify([tokens, targets]) !== JSON.stringify([call.tokens, call.targets]))
    throw new Wrong("ids were written to");
  return answer;
}

function judgeParameters(held, given, expected) {
  if (!same(Object.keys(held), expected.names)) throw new Wrong("parameters have other names, or another order");
  const scalars = Object.values(held).reduce((sum, value) => sum + value.values.length, 0);
  if (scalars !== expected.scalars) throw new Wrong(`there are ${scalars} scalars, expected ${expected.scalars}`);
  for (const name of expected.names) sameBits(`parameter ${name}`, held[name], given[name]);
  return {};
}

function seedCase(_document, item) {
  const words = splitMix64(BigInt(item.seed));
  const first = item.expected.words.map(() => `0x${words.next().value.toString(16).padStart(16, "0")}`);
  if (!same(first, item.expected.words)) throw new Wrong(`words are ${first}, expected ${item.expected.words}`);
  judgeAll("parameter", initialized(item.config, BigInt(item.seed)), item.expected.parameters);
}

function errorCase({ base }, item, kept) {
  const words = { NaN, Infinity, "-Infinity": -Infinity }; // JSON has no such numbers
  const number = (value) => words[value] ?? value;
  const entries = Object.entries({ ...base.parameters, ...item.change.parameters }).filter(([, entry]) => entry);
  const read = ([name, { shape, values }]) => [name, { shape, values: values.map(number) }];
  const parameters = Object.fromEntries(entries.map(read));
  const config = { ...base.config, ...item.change.config };
  for (const name of ["rope_base", "rms_epsilon"]) config[name] = number(config[name]);
  const category = refused(item.call, { ...base, ...item.change, config, parameters });
  const was = category ? `refused as ${category}` : "taken";
  if (item.result === "taken" ? category : !item.categories.includes(category))
    throw new Wrong(`it is ${was}, expected to be ${item.result} ${item.categories.join(" or ")}`);
  kept.model ??= new Model(base.config, arrays(base.parameters));
  const logits = kept.model.logits(base.tokens); // one request that is refused must not spoil the next
  judge("base logits afterwards", logits, base.expected.logits);
  sameBits("base logits afterwards", logits, (kept.logits ??= logits));
}

const KINDS = { operation: operationCase, model: modelCase, initialization: seedCase, errors: errorCase };

function main(folder) {
  const index = JSON.parse(readFileSync(join(folder, "index.json"), "utf8"));
  if (index.schema !== "vectors.schema.json" || index.version !== 1) throw new Error("vectors of another version");
  let failures = 0, ran = 0;
  for (const { file, sha256 } of index.files) {
    const content = readFileSync(join(folder, file)), document = JSON.parse(content), kept = {}, wrong = [];
    const digest = createHash("sha256").update(content).digest("hex");
    if (digest !== sha256) wrong.push("the file is not the one that index.json lists");
    const cases = document.cases.filter((item) => !item.precisions || item.precisions.includes(precision));
    for (const item of cases) {
      try {
        KINDS[document.kind](document, item, kept);
      } catch (error) {
        if (!(error instanceof Wrong)) throw error;
        wrong.push(`${item.id}: ${error.message}`);
      }
    }
    [ran, failures] = [ran + cases.length, failures + wrong.length];
    console.log(`${file.padEnd(20)} ${String(cases.length).padStart(4)} cases, ${wrong.length || "none"} failed`);
    wrong.forEach((line) => console.log(`  ${line}`));
  }
  console.log(`${ran} cases in ${precision}, ${failures} failures`);
  return failures || !ran ? 1 : 0;
}

if (!process.argv[2]) {
  console.error("usage: node read_vectors.mjs DIRECTORY [float64|float32|bfloat16|float16]");
  process.exit(2);
}
process.exit(main(process.argv[2]));
