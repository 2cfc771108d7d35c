//! A LLaMA-style decoder in Rust that speaks the line protocol of decoderspec (docs/protocol.md).
//!
//!     rustc --edition 2021 -O -o decoder decoder.rs
//!     decoderspec check --command ./decoder
//!
//! In f64, with the standard library alone. Written to be read: the model comes first, then what is refused, then the
//! protocol. Arrays travel as base64. Rows are [B, T, d], heads [B, h, T, w], matrices [in, out].

use std::collections::HashMap;
use std::io::{self, BufRead, Write};

// ---------------------------------------------------------------- the decoder

struct Config {
    vocabulary: usize, // V
    width: usize,      // d
    heads: usize,      // h
    hidden: usize,     // f
    layers: usize,     // N
    max_positions: usize,
    rope_base: f64,
    rms_epsilon: f64,
}

impl Config {
    fn head_width(&self) -> usize {
        self.width / self.heads // w
    }
}

struct Tensor {
    name: String,
    shape: Vec<usize>,
    values: Vec<f64>,
}

type Parameters = Vec<Tensor>; // in canonical order

/// Names and shapes of the parameters, one by one: a typo in the number of layers costs nothing.
fn parameter_shapes(c: &Config) -> impl Iterator<Item = (String, Vec<usize>)> + '_ {
    let (d, f) = (c.width, c.hidden);
    let block = move |n: usize| {
        let within = [
            ("attention_norm.gain", vec![d]),
            ("attention.query.weight", vec![d, d]),
            ("attention.key.weight", vec![d, d]),
            ("attention.value.weight", vec![d, d]),
            ("attention.output.weight", vec![d, d]),
            ("ffn_norm.gain", vec![d]),
            ("ffn.gate.weight", vec![d, f]),
            ("ffn.up.weight", vec![d, f]),
            ("ffn.down.weight", vec![f, d]),
        ];
        within.into_iter().map(move |(name, shape)| (format!("blocks.{n}.{name}"), shape))
    };
    let table = std::iter::once(("token_embedding.weight".to_string(), vec![c.vocabulary, d]));
    let gain = std::iter::once(("final_norm.gain".to_string(), vec![d]));
    table.chain((0..c.layers).flat_map(block)).chain(gain)
}

/// Every stage in forward order; the last are the logits.
fn stages(c: &Config, p: &Parameters, tokens: &[usize], batch: usize, length: usize) -> Result<Vec<Tensor>, Refusal> {
    let (d, h, w, f) = (c.width, c.heads, c.head_width(), c.hidden);
    let by_row = |width: usize| vec![batch, length, width];
    let by_head = |width: usize| vec![batch, h, length, width];
    let mut given: Vec<Tensor> = Vec::new();
    let mut give = |name: String, shape: Vec<usize>, values: &[f64]| {
        given.push(Tensor { name, shape, values: values.to_vec() });
    };

    let table = &p[0].values;
    let mut x: Vec<f64> = tokens.iter().flat_map(|&id| table[id * d..(id + 1) * d].to_vec()).collect();
    give("embedding".to_string(), by_row(d), &x);
    for n in 0..c.layers {
        let weight = |k: usize| &p[1 + 9 * n + k].values[..];
        let mut give = |name: &str, shape: Vec<usize>, values: &[f64]| give(format!("blocks.{n}.{name}"), shape, values);

        let norm = rms_norm(&x, weight(0), c.rms_epsilon)?;
        give("attention_norm", by_row(d), &norm);
        let [query, key, value] = [1, 2, 3].map(|k| split(&linear(&norm, weight(k), d, d), batch, length, h));
        give("attention.query", by_head(w), &query);
        give("attention.key", by_head(w), &key);
        give("attention.value", by_head(w), &value);
        let [query, key] = [query, key].map(|heads| rotate(&heads, c.rope_base, length, w));
        give("attention.rotated_query", by_head(w), &query);
        give("attention.rotated_key", by_head(w), &key);
        let weights = attention_weights(&query, &key, length, w);
        give("attention.weights", by_head(length), &weights);
        let heads = mix(&weights, &value, length, w);
        give("attention.heads", by_head(w), &heads);
        let merged = merge(&heads, batch, length, h);
        give("attention.merged", by_row(d), &merged);
        let branch = linear(&merged, weight(4), d, d);
        give("attention.output", by_row(d), &branch);
        add(&mut x, &branch);
        give("after_attention", by_row(d), &x);

        let norm = rms_norm(&x, weight(5), c.rms_epsilon)?;
        give("ffn_norm", by_row(d), &norm);
        let gate = linear(&norm, weight(6), d, f);
        give("ffn.gate", by_row(f), &gate);
        let silu: Vec<f64> = gate.iter().map(|g| g / (1.0 + (-g).exp())).collect();
        give("ffn.silu", by_row(f), &silu);
        let up = linear(&norm, weight(7), d, f);
        give("ffn.up", by_row(f), &up);
        let product: Vec<f64> = silu.iter().zip(&up).map(|(s, u)| s * u).collect();
        give("ffn.product", by_row(f), &product);
        let branch = linear(&product, weight(8), f, d);
        give("ffn.output", by_row(d), &branch);
        add(&mut x, &branch);
        give("output", by_row(d), &x);
    }
    let norm = rms_norm(&x, &p[p.len() - 1].values, c.rms_epsilon)?;
    give("final_norm".to_string(), by_row(d), &norm);
    give("logits".to_string(), by_row(c.vocabulary), &project(&norm, table, d));
    Ok(given)
}

/// `x (mean(x^2) + epsilon)^(-1/2) gain`, row by row.
fn rms_norm(x: &[f64], gain: &[f64], epsilon: f64) -> Result<Vec<f64>, Refusal> {
    let mut y = Vec::with_capacity(x.len());
    for row in x.chunks(gain.len()) {
        let energy = row.iter().map(|v| v * v).sum::<f64>() / row.len() as f64 + epsilon;
        if energy == 0.0 {
            return refuse("numeric", "a row without energy cannot be normalized with an epsilon of 0");
        }
        y.extend(row.iter().zip(gain).map(|(v, g)| v / energy.sqrt() * g));
    }
    Ok(y)
}

/// `x @ W`, the weight `[input, output]`.
fn linear(x: &[f64], weight: &[f64], input: usize, output: usize) -> Vec<f64> {
    let mut y = vec![0.0; x.len() / input * output];
    for (row, sums) in x.chunks(input).zip(y.chunks_mut(output)) {
        for (value, weights) in row.iter().zip(weight.chunks(output)) {
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum += value * weight;
            }
        }
    }
    y
}

/// `[B, T, d]` to `[B, h, T, w]`: contiguous slices, one per head.
fn split(x: &[f64], batch: usize, length: usize, heads: usize) -> Vec<f64> {
    let width = x.len() / (batch * length * heads);
    let mut y = Vec::with_capacity(x.len());
    for b in 0..batch {
        for head in 0..heads {
            for t in 0..length {
                let start = ((b * length + t) * heads + head) * width;
                y.extend_from_slice(&x[start..start + width]);
            }
        }
    }
    y
}

/// `[B, h, T, w]` to `[B, T, d]`: split with the two axes in each other's place.
fn merge(x: &[f64], batch: usize, length: usize, heads: usize) -> Vec<f64> {
    split(x, batch, heads, length)
}

/// Adjacent pairs `(a, b)` to `(a cos - b sin, a sin + b cos)`.
fn rotate(x: &[f64], base: f64, length: usize, width: usize) -> Vec<f64> {
    let mut y = Vec::with_capacity(x.len());
    for (row, values) in x.chunks(width).enumerate() {
        for (i, pair) in values.chunks(2).enumerate() {
            let angle = (row % length) as f64 * base.powf(-2.0 * i as f64 / width as f64);
            let (sin, cos) = angle.sin_cos();
            y.push(pair[0] * cos - pair[1] * sin);
            y.push(pair[0] * sin + pair[1] * cos);
        }
    }
    y
}

/// The softmax of `q . k / sqrt(w)` over the keys up to the query; 0 after it. `[B, h, T, T]`.
fn attention_weights(query: &[f64], key: &[f64], length: usize, width: usize) -> Vec<f64> {
    let mut all = Vec::with_capacity(query.len() / width * length);
    for (queries, keys) in query.chunks(length * width).zip(key.chunks(length * width)) {
        for (t, q) in queries.chunks(width).enumerate() {
            let seen = keys.chunks(width).take(t + 1);
            let scores: Vec<f64> = seen.map(|k| dot(q, k) / (width as f64).sqrt()).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let powers: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let sum: f64 = powers.iter().sum();
            all.extend(powers.iter().map(|e| e / sum));
            all.extend(std::iter::repeat_n(0.0, length - t - 1));
        }
    }
    all
}

/// Values averaged by the weights.
fn mix(weights: &[f64], value: &[f64], length: usize, width: usize) -> Vec<f64> {
    let pairs = weights.chunks(length * length).zip(value.chunks(length * width));
    pairs.flat_map(|(weights, values)| linear(weights, values, length, width)).collect()
}

/// `x @ E^T`, with the table of the lookup.
fn project(x: &[f64], table: &[f64], width: usize) -> Vec<f64> {
    x.chunks(width).flat_map(|row| table.chunks(width).map(|word| dot(row, word)).collect::<Vec<f64>>()).collect()
}

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(a, b)| a * b).sum()
}

fn add(x: &mut [f64], branch: &[f64]) {
    x.iter_mut().zip(branch).for_each(|(a, b)| *a += b);
}

/// Initial parameters: SplitMix64 from the seed; gains are 1 and draw nothing.
fn initial(c: &Config, seed: u64) -> Parameters {
    let mut state = seed;
    let mut unit = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut v = state;
        v = (v ^ (v >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        v = (v ^ (v >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((v ^ (v >> 31)) >> 11) as f64 / 2f64.powi(53)
    };
    let mut draw = |shape: &[usize]| match *shape {
        [rows, columns] => {
            let limit = (6.0 / (rows + columns) as f64).sqrt();
            (0..rows * columns).map(|_| limit * (2.0 * unit() - 1.0)).collect()
        }
        _ => vec![1.0; shape[0]],
    };
    parameter_shapes(c).map(|(name, shape)| Tensor { name, values: draw(&shape), shape }).collect()
}

// ---------------------------------------------------------------- what is refused

struct Refusal {
    category: &'static str, // one of the specification's, or empty
    words: String,
}

fn refuse<T>(category: &'static str, words: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { category, words: words.into() })
}

fn read_config(message: &Message) -> Result<Config, Refusal> {
    let integer = |name: &str, least: i64| match message.word(name).parse::<i64>() {
        Ok(size) if size >= least => Ok(size as usize),
        _ => refuse("configuration", format!("{name} must be an integer from {least}, got {}", message.word(name))),
    };
    let real = |name: &str| match message.word(name).parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => refuse("configuration", format!("{name} must be finite, not negative, got {}", message.word(name))),
    };
    let c = Config {
        vocabulary: integer("vocabulary_size", 1)?,
        width: integer("model_width", 1)?,
        heads: integer("heads", 1)?,
        hidden: integer("feed_forward_width", 1)?,
        layers: integer("layers", 0)?,
        max_positions: integer("max_positions", 1)?,
        rope_base: real("rope_base")?,
        rms_epsilon: real("rms_epsilon")?,
    };
    if c.width % c.heads != 0 || c.head_width() % 2 != 0 {
        return refuse("configuration", format!("model_width {} must be {} heads of an even width", c.width, c.heads));
    }
    if c.rope_base == 0.0 {
        return refuse("configuration", "rope_base must be positive, got 0");
    }
    let (d, f) = (c.width as f64, c.hidden as f64); // as floats, which do not overflow
    let scalars = c.vocabulary as f64 * d + c.layers as f64 * (4.0 * d * d + 3.0 * d * f + 2.0 * d) + d;
    if scalars > 2f64.powi(40) {
        return refuse("resource", format!("{scalars} parameters are more than 2^40"));
    }
    Ok(c)
}

/// The values of an array that must be one parameter.
fn checked(array: &Array, name: &str, shape: &[usize]) -> Result<Vec<f64>, Refusal> {
    match &array.values {
        Values::Real(values) if array.shape == shape && values.iter().all(|v| v.is_finite()) => Ok(values.clone()),
        Values::Real(_) if array.shape == shape => refuse("parameters", format!("{name} is not finite")),
        Values::Real(_) => refuse("parameters", format!("{name} is {:?}, must be {shape:?}", array.shape)),
        Values::Integer(_) => refuse("parameters", format!("{name} must be float64")),
    }
}

fn read_parameters(c: &Config, arrays: &HashMap<String, Array>) -> Result<Parameters, Refusal> {
    let mut found = Vec::new();
    for (name, shape) in parameter_shapes(c) {
        let Some(array) = arrays.get(&name) else {
            return refuse("parameters", format!("{name} is missing"));
        };
        found.push(Tensor { values: checked(array, &name, &shape)?, name, shape });
    }
    if arrays.len() != found.len() {
        return refuse("parameters", format!("{} tensors, there are {} parameters", arrays.len(), found.len()));
    }
    Ok(found)
}

/// Ids, batch and length.
fn read_tokens(c: &Config, arrays: &HashMap<String, Array>) -> Result<(Vec<usize>, usize, usize), Refusal> {
    let Some(Array { shape, values: Values::Integer(ids) }) = arrays.get("tokens") else {
        return refuse("token_shape", "tokens must be int64");
    };
    let &[batch, length] = &shape[..] else {
        return refuse("token_shape", format!("tokens must be [B, T], got {shape:?}"));
    };
    if ids.is_empty() {
        return refuse("token_shape", "there are no tokens");
    }
    if length > c.max_positions {
        return refuse("context", format!("{length} tokens are more than {}", c.max_positions));
    }
    let known = ids.iter().map(|&id| usize::try_from(id).ok().filter(|&row| row < c.vocabulary));
    match known.collect::<Option<Vec<usize>>>() {
        Some(rows) => Ok((rows, batch, length)),
        None => refuse("vocabulary", format!("token ids must lie in 0 .. {}", c.vocabulary - 1)),
    }
}

// ---------------------------------------------------------------- the protocol: a message is one flat JSON object

enum Field {
    Word(String), // a string, a number or a truth value
    List(Vec<String>),
}

struct Message(HashMap<String, Field>);

impl Message {
    fn word(&self, name: &str) -> &str {
        match self.0.get(name) {
            Some(Field::Word(text)) => text,
            _ => "",
        }
    }

    fn list(&self, name: &str) -> &[String] {
        match self.0.get(name) {
            Some(Field::List(elements)) => elements,
            _ => &[],
        }
    }
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn message(line: &'a str) -> Option<Message> {
        let mut reader = Reader { rest: line.trim_end() };
        let mut fields = HashMap::new();
        reader.take('{').then_some(())?;
        while !reader.take('}') {
            let name = reader.string()?;
            reader.take(':').then_some(())?;
            fields.insert(name, reader.field()?);
            reader.take(',');
        }
        Some(Message(fields))
    }

    /// Whether that character comes next; then it is behind us.
    fn take(&mut self, wanted: char) -> bool {
        self.rest = self.rest.trim_start();
        let rest = self.rest.strip_prefix(wanted);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn string(&mut self) -> Option<String> {
        self.take('"').then_some(())?;
        let mut text = String::new();
        loop {
            let end = self.rest.find(['"', '\\'])?;
            text.push_str(&self.rest[..end]);
            let is_end = self.rest[end..].starts_with('"');
            self.rest = &self.rest[end + 1..];
            if is_end {
                return Some(text);
            }
            text.push(self.rest.chars().next()?); // \uXXXX is left as it is: no name of ours has it
            self.rest = &self.rest[1..];
        }
    }

    fn field(&mut self) -> Option<Field> {
        self.rest = self.rest.trim_start();
        if self.rest.starts_with('"') {
            return Some(Field::Word(self.string()?));
        }
        if self.take('[') {
            let mut elements = Vec::new();
            while !self.take(']') {
                elements.push(self.string()?);
                self.take(',');
            }
            return Some(Field::List(elements));
        }
        let end = self.rest.find([',', '}'])?;
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        Some(Field::Word(word.trim_end().to_string()))
    }
}

enum Values {
    Real(Vec<f64>),
    Integer(Vec<i64>),
}

struct Array {
    shape: Vec<usize>,
    values: Values,
}

/// The arrays of a request by name; the suite sends float64 and int64 alone.
fn read_arrays(message: &Message) -> Option<HashMap<String, Array>> {
    let mut data = message.word("data").split(' ');
    let mut found = HashMap::new();
    for description in message.list("arrays") {
        let words: Vec<&str> = description.split(' ').collect();
        let shape = words[2..].iter().map(|size| size.parse().ok()).collect::<Option<Vec<usize>>>()?;
        let bytes = from_base64(data.next()?)?;
        let each = bytes.chunks_exact(8).map(|eight| <[u8; 8]>::try_from(eight).unwrap());
        let values = match words[1] {
            "float64" => Values::Real(each.map(f64::from_le_bytes).collect()),
            _ => Values::Integer(each.map(i64::from_le_bytes).collect()),
        };
        found.insert(words[0].to_string(), Array { shape, values });
    }
    Some(found)
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn from_base64(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut bits, mut have) = (Vec::with_capacity(text.len() / 4 * 3), 0u32, 0);
    for letter in text.bytes().filter(|&letter| letter != b'=') {
        bits = bits << 6 | DIGITS.iter().position(|&digit| digit == letter)? as u32;
        have += 6;
        if have >= 8 {
            have -= 8;
            bytes.push((bits >> have) as u8);
        }
    }
    Some(bytes)
}

fn to_base64(values: &[f64]) -> String {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut text = String::with_capacity(bytes.len() / 3 * 4 + 4);
    for three in bytes.chunks(3) {
        let bits = (0..3).fold(0u32, |bits, i| bits << 8 | u32::from(*three.get(i).unwrap_or(&0)));
        for i in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * i)) as usize & 63];
            text.push(if i <= three.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

/// A string as JSON writes it; anything that is not plain becomes a question mark.
fn quoted(text: &str) -> String {
    let plain = |letter: char| if matches!(letter, ' '..='~') && letter != '"' && letter != '\\' { letter } else { '?' };
    format!("\"{}\"", text.chars().map(plain).collect::<String>())
}

/// The fields of a reply that carries these arrays.
fn arrays_field(tensors: &[Tensor]) -> String {
    let describe = |tensor: &Tensor| {
        let sizes: String = tensor.shape.iter().map(|size| format!(" {size}")).collect();
        quoted(&format!("{} float64{sizes}", tensor.name))
    };
    let described: Vec<String> = tensors.iter().map(describe).collect();
    let data: Vec<String> = tensors.iter().map(|tensor| to_base64(&tensor.values)).collect();
    format!(", \"arrays\": [{}], \"data\": \"{}\"", described.join(", "), data.join(" "))
}

// ---------------------------------------------------------------- the calls

struct Model {
    config: Config,
    parameters: Parameters,
}

const START: &str = r#", "protocol": 1, "name": "decoder.rs", "encoding": "base64", "precision": "float64",
 "offers": ["logits", "stages", "parameters", "assign", "initialize", "classify"]"#;

/// The fields of the reply beside its id.
fn answer(message: &Message, models: &mut HashMap<String, Model>) -> Result<String, Refusal> {
    let Some(arrays) = read_arrays(message) else {
        return refuse("", "the arrays are not as they are announced");
    };
    let number = message.word("model").to_string();
    match message.word("call") {
        "start" => return Ok(START.replace('\n', "")),
        "build" => {
            let config = read_config(message)?;
            let parameters = read_parameters(&config, &arrays)?;
            models.insert(number, Model { config, parameters });
            return Ok(String::new());
        }
        "initialize" => {
            let config = read_config(message)?;
            let Ok(seed) = message.word("seed").parse() else {
                return refuse("configuration", format!("seed must be 0 .. 2^64 - 1, got {}", message.word("seed")));
            };
            let parameters = initial(&config, seed);
            models.insert(number, Model { config, parameters });
            return Ok(String::new());
        }
        _ => {}
    }
    let Some(model) = models.get_mut(&number) else {
        return refuse("", format!("there is no model {number}"));
    };
    match message.word("call") {
        "logits" | "stages" => {
            let (ids, batch, length) = read_tokens(&model.config, &arrays)?;
            let given = stages(&model.config, &model.parameters, &ids, batch, length)?;
            let from = if message.word("call") == "logits" { given.len() - 1 } else { 0 };
            Ok(arrays_field(&given[from..]))
        }
        "parameters" => Ok(arrays_field(&model.parameters)),
        "assign" => {
            for (name, array) in &arrays {
                let Some(tensor) = model.parameters.iter_mut().find(|tensor| tensor.name == *name) else {
                    return refuse("parameters", format!("there is no parameter {name}"));
                };
                tensor.values = checked(array, name, &tensor.shape)?;
            }
            Ok(String::new())
        }
        "close" => {
            models.remove(&number);
            Ok(String::new())
        }
        call => refuse("", format!("there is no call {call}")),
    }
}

fn main() -> io::Result<()> {
    let mut models = HashMap::new();
    let mut output = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let Some(message) = Reader::message(&line) else {
            eprintln!("decoder: a request is not flat JSON");
            std::process::exit(1);
        };
        let fields = answer(&message, &mut models).unwrap_or_else(|refusal| {
            let category = match refusal.category {
                "" => String::new(),
                word => format!(", \"category\": {}", quoted(word)),
            };
            format!(", \"error\": {}{category}", quoted(&refusal.words))
        });
        writeln!(output, "{{\"id\": {}{fields}}}", message.word("id"))?;
        output.flush()?;
    }
    Ok(())
}
