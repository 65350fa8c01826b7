//! The expectations of a new variant, guessed from programs of one structure.
//!
//! The sizes that differ between the examples become symbols, in recording order:
//! - a size that equals a known one in every example is that one;
//! - else an affine function of one or two symbols, or a product of two;
//! - else a new symbol.
//!
//! Ops infer their shapes meanwhile, so the dims that they compute (`n + 1` after a `cat`, `b · l` after a
//! reshape) are known to later ops. The more examples there are, the fewer guesses are wrong.

use crate::node_map::NodeMap;
use crate::recording::Recording;
use crate::variant::{Expectation, Kind, Sizes, Symbol};
use hashbrown::HashMap;
use kiln_base::{Dim, Loc, Scalar, Sym};
use kiln_ir::{Graph, Op, Value};
use std::sync::Arc;

/// The reason why sizes can't be symbols.
pub(crate) struct Refusal {
    /// The node of the recording.
    pub(crate) node: usize,
    /// The condition that does not hold.
    pub(crate) text: String,
}

/// True if two programs have the same sizes, whatever their offsets.
pub(crate) fn same_sizes(kinds: &[Kind], a: &[i64], b: &[i64]) -> bool {
    let mut pairs = kinds.iter().zip(a.iter().zip(b));
    pairs.all(|(kind, (a, b))| *kind == Kind::Offset || a == b)
}

/// True if one variant may cover both sizes: no symbol has the value 0 or 1.
fn can_share_variant(kinds: &[Kind], a: &[i64], b: &[i64]) -> bool {
    let mut pairs = kinds.iter().zip(a.iter().zip(b));
    pairs.all(|(kind, (a, b))| *kind == Kind::Offset || a == b || *a >= 2 && *b >= 2)
}

/// Returns the expectation for a program and the examples that agree with it: in all sizes, or, if `open`, in which
/// sizes are 0 or 1. `free` marks the numbers that are inputs.
///
/// # Errors
/// If an op does not apply to such sizes.
pub(crate) fn generalize(
    recording: &Recording,
    kinds: &[Kind],
    examples: &[Sizes],
    sizes: &Sizes,
    free: &[bool],
    open: bool,
) -> Result<Expectation, Refusal> {
    let fits = |e: &&Sizes| match open {
        true => can_share_variant(kinds, &e.dims, &sizes.dims),
        false => same_sizes(kinds, &e.dims, &sizes.dims),
    };
    let mut used: Vec<&[i64]> = examples.iter().filter(fits).map(|e| &e.dims[..]).collect();
    used.push(&sizes.dims);
    used.sort();
    used.dedup();
    let scalars = sizes.scalars.iter().zip(free);
    let scalars = scalars.map(|(s, free)| (!free).then_some(*s)).collect();
    let mut guess = Guess {
        kinds,
        values: vec![Vec::new(); used.len()],
        examples: used,
        symbols: Vec::new(),
        known: HashMap::new(),
        parts: HashMap::new(),
        products: HashMap::new(),
        restart: false,
    };
    let dims = loop {
        match guess.walk(recording) {
            // The symbol is a part of a number, not the number itself: start again.
            Err(_) if guess.restart => guess.begin(),
            walked => break walked?,
        }
    };
    Ok(Expectation {
        dims,
        symbols: guess.symbols,
        scalars,
    })
}

/// Dims by their values in the examples.
type Dims = HashMap<Vec<i64>, Dim>;

struct Guess<'a> {
    kinds: &'a [Kind],
    examples: Vec<&'a [i64]>,
    symbols: Vec<Symbol>,
    /// The values of the symbols, by example.
    values: Vec<Vec<i64>>,
    known: Dims,
    /// The symbols of positions whose numbers reshapes split.
    parts: HashMap<usize, Symbol>,
    /// The positions whose number is the product of two adjacent numbers, with the position of the first.
    products: HashMap<usize, usize>,
    /// True once a walk has added to `parts` or `products`.
    restart: bool,
}

impl Guess<'_> {
    /// Forgets everything except `parts` and `products`.
    fn begin(&mut self) {
        self.values.iter_mut().for_each(Vec::clear);
        self.symbols.clear();
        self.known.clear();
        self.restart = false;
    }

    /// Determines every dim of the recording.
    fn walk(&mut self, recording: &Recording) -> Result<Vec<Dim>, Refusal> {
        let mut graph = Graph::default();
        let mut map = NodeMap::default();
        let mut dims: Vec<Dim> = Vec::with_capacity(self.kinds.len());
        for (node, recorded) in recording.nodes.iter().enumerate() {
            let refuse = |text: String| Refusal { node, text };
            let operands = recording.operands[recorded.inputs.clone()].iter();
            let inputs: Vec<Value> = operands.map(|v| map.value(v)).collect();
            if let Some(body) = recorded.body {
                let result = map.add_body(&mut graph, body, &inputs, |_| Loc::UNKNOWN);
                result.map_err(|e| refuse(e.0))?;
                continue;
            }
            let mut op = recorded.op.clone();
            if op.has_sizes() {
                let runs = match (&op, &inputs[..]) {
                    (Op::Reshape(_), [x]) => Some(self.runs(&graph.fact(*x).shape)),
                    _ => None,
                };
                let first = dims.len();
                let count = op.dims().len();
                for position in first..first + count {
                    let dim = self.choose(position, runs.as_ref());
                    dims.push(dim.map_err(refuse)?);
                }
                let mut chosen = dims[first..].iter();
                op.dims_mut(&mut |d| *d = chosen.next().cloned().unwrap_or(Dim::ZERO));
                for body in op.bodies_mut() {
                    let result = Arc::make_mut(body).bind(&[]);
                    result.map_err(|e| refuse(e.0))?;
                }
            }
            let result = graph.add(op, &inputs, Loc::UNKNOWN);
            let id = result.map_err(|e| refuse(e.0))?;
            for fact in &graph.node(id).facts {
                fact.shape.iter().for_each(|d| self.know(d));
            }
            map.add(id);
        }
        Ok(dims)
    }

    /// Returns the dim at a position. For a reshape, `runs` has the products of adjacent dims of its operand.
    fn choose(&mut self, position: usize, runs: Option<&Dims>) -> Result<Dim, String> {
        let row: Vec<i64> = self.examples.iter().map(|e| e[position]).collect();
        if row.iter().all(|v| *v == row[0]) {
            return Ok(Dim::Const(row[0]));
        }
        let known = runs.and_then(|runs| runs.get(&row));
        if let Some(dim) = known.or_else(|| self.known.get(&row)) {
            return Ok(dim.clone());
        }
        if runs.is_some() && self.is_factor(position, &row) {
            return Err("a factor of a size".to_string());
        }
        let dim = match self.function(&row, self.kinds[position]) {
            Some(dim) => dim,
            None if self.is_part(position, &row, runs.is_some()) => {
                return Err("a part of a size".to_string());
            }
            None => self.symbol(position, &row)?,
        };
        self.known.insert(row, dim.clone());
        Ok(dim)
    }

    /// True if, in every example, a symbol is this number times the next one, as a size that is split differently each
    /// time. The symbol is then that product.
    fn is_factor(&mut self, position: usize, row: &[i64]) -> bool {
        let next = self.examples.iter().map(|e| e.get(position + 1));
        let symbol_found = self.symbols.iter().enumerate().find(|(i, symbol)| {
            let mut examples = self.values.iter().zip(row).zip(next.clone());
            let fits = examples.all(|((v, a), b)| b.and_then(|b| a.checked_mul(*b)) == Some(v[*i]));
            fits && symbol.kind != Kind::Offset && (symbol.times, symbol.less) == (1, 0)
        });
        if let Some(target) = symbol_found.map(|(_, s)| s.at) {
            self.products.insert(target, position);
            self.restart = true;
        }
        self.restart
    }

    /// True if, in every example, a symbol is a multiple of this number, less a constant. Sizes that reshapes split
    /// are such multiples, as are the sizes of lists that depend on a size. The symbol is then this number.
    fn is_part(&mut self, position: usize, row: &[i64], splits: bool) -> bool {
        if !splits && self.kinds[position] != Kind::Input {
            return false;
        }
        let part = self.symbols.iter().enumerate().find_map(|(i, symbol)| {
            let value = |e: usize| self.values[e][i];
            let example = (1..row.len()).find(|e| row[*e] != row[0])?;
            let (rise, run) = (value(example) - value(0), row[example] - row[0]);
            let times = (rise % run == 0).then_some(rise / run).filter(|t| *t > 1)?;
            let less = times * row[0] - value(0);
            let is_affine = (0..row.len()).all(|e| value(e) == times * row[e] - less);
            let is_size = symbol.kind != Kind::Offset;
            // Any two points lie on a line.
            (is_affine && is_size && (splits && less == 0 || row.len() > 2)).then(|| Symbol {
                times: symbol.times * times,
                less: symbol.less + symbol.times * less,
                ..*symbol
            })
        });
        if let Some(symbol) = part {
            self.parts.insert(symbol.at, symbol);
            self.restart = true;
        }
        self.restart
    }

    /// Returns a symbol for a position.
    fn symbol(&mut self, position: usize, row: &[i64]) -> Result<Dim, String> {
        if let Some(first) = self.products.get(&position).copied() {
            let [a, b] = [first, first + 1].map(|position| self.choose(position, None));
            return Ok(&a? * &b?);
        }
        let kind = self.kinds[position];
        let new = || Symbol::new(position, kind);
        let symbol = self.parts.get(&position).cloned().unwrap_or_else(new);
        let value = |v: &i64| (v + symbol.less) / symbol.times;
        if row.iter().any(|v| value(v) < 2) {
            return Err("a size that is 0 or 1 for some programs can't be a symbol".to_string());
        }
        for (values, v) in self.values.iter_mut().zip(row) {
            values.push(value(v));
        }
        let dim = &Dim::symbol(Sym(self.symbols.len() as u32)) * &Dim::Const(symbol.times);
        let dim = &dim - &Dim::Const(symbol.less);
        self.symbols.push(symbol);
        Ok(dim)
    }

    /// A function of the symbols that has these values.
    fn function(&self, row: &[i64], kind: Kind) -> Option<Dim> {
        let count = self.symbols.len();
        let symbol = |i: usize| Dim::symbol(Sym(i as u32));
        if let Some(dim) = (0..count).find_map(|i| self.affine(row, i)) {
            return Some(dim);
        }
        // Too many functions of two symbols pass through two examples.
        if row.len() < 3 {
            return None;
        }
        let pairs = (0..count).flat_map(|i| (i..count).map(move |j| (i, j)));
        for (i, j) in pairs {
            for (a, b) in [(1, 1), (1, -1), (-1, 1), (-1, -1)] {
                let sum = |v: &Vec<i64>| a * v[i] + b * v[j];
                let rests = row.iter().zip(&self.values).map(|(r, v)| r - sum(v));
                let rests: Vec<i64> = rests.collect();
                if rests.iter().all(|r| *r == rests[0]) {
                    let sum = &(&symbol(i) * &Dim::Const(a)) + &(&symbol(j) * &Dim::Const(b));
                    return Some(&sum + &Dim::Const(rests[0]));
                }
            }
            let is_product = |(r, v): (&i64, &Vec<i64>)| v[i].checked_mul(v[j]) == Some(*r);
            if kind == Kind::Size && row.iter().zip(&self.values).all(is_product) {
                return Some(&symbol(i) * &symbol(j));
            }
        }
        None
    }

    /// Returns an affine function of a symbol that has these values.
    fn affine(&self, row: &[i64], symbol: usize) -> Option<Dim> {
        let value = |example: usize| self.values[example][symbol];
        let other = (1..row.len()).find(|e| value(*e) != value(0))?;
        let (rise, run) = (row[other] - row[0], value(other) - value(0));
        let slope = (rise % run == 0).then(|| rise / run)?;
        // Any two points lie on a line.
        if slope == 0 || row.len() < 3 && slope.abs() > 1 {
            return None;
        }
        let constant = row[0] - slope * value(0);
        let is_affine = (0..row.len()).all(|e| row[e] == slope * value(e) + constant);
        let scaled = &Dim::symbol(Sym(symbol as u32)) * &Dim::Const(slope);
        is_affine.then(|| &scaled + &Dim::Const(constant))
    }

    /// The values of a dim in the examples, unless it is constant.
    fn row(&self, dim: &Dim) -> Option<Vec<i64>> {
        let row = self.values.iter().map(|values| dim.eval_checked(values));
        row.collect::<Option<_>>()
            .filter(|_| dim.as_const().is_none())
    }

    /// Remembers a dim that an op inferred.
    fn know(&mut self, dim: &Dim) {
        if let Some(row) = self.row(dim) {
            self.known.entry(row).or_insert_with(|| dim.clone());
        }
    }

    /// Returns the products of all runs of adjacent dims of a shape.
    fn runs(&self, shape: &[Dim]) -> Dims {
        let mut runs = Dims::new();
        for first in 0..shape.len() {
            let mut product = Dim::ONE;
            for d in &shape[first..] {
                product = &product * d;
                if let Some(row) = self.row(&product) {
                    runs.entry(row).or_insert_with(|| product.clone());
                }
            }
        }
        runs
    }
}

/// Describes the sizes and numbers that differ between two programs of a structure, and where: the first few of them.
pub(crate) fn differences(
    recording: &Recording,
    kinds: &[Kind],
    old: &Sizes,
    new: &Sizes,
) -> String {
    const SHOWN: usize = 3;
    let (mut dim, mut scalar) = (0, 0);
    let mut texts: Vec<String> = Vec::new();
    let mut omitted = 0;
    for node in recording.nodes.iter().filter(|n| n.op.has_sizes()) {
        let mut push = |name: &str, old: String, new: String| match texts.len() < SHOWN {
            true => texts.push(format!(
                "{name} of `{}` at {} is {new} and was {old}",
                node.op.name(),
                node.loc
            )),
            false => omitted += 1,
        };
        for i in 0..node.op.dims().len() {
            let (a, b) = (old.dims[dim], new.dims[dim]);
            if a != b {
                let name = match kinds[dim] {
                    Kind::Offset => "an offset".to_string(),
                    Kind::Input => format!("dim {i}"),
                    Kind::Size => "a size".to_string(),
                };
                push(&name, a.to_string(), b.to_string());
            }
            dim += 1;
        }
        if node.op.scalar().is_some() {
            let (a, b): (Scalar, Scalar) = (old.scalars[scalar], new.scalars[scalar]);
            if a != b {
                push("the number", a.to_string(), b.to_string());
            }
            scalar += 1;
        }
    }
    if omitted > 0 {
        texts.push(format!("{omitted} more"));
    }
    texts.join(", ")
}
