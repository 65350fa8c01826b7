//! The syntax of PTX: text → [`Module`] with registers resolved and everything else as written.

mod lexer;
mod parser;
mod types;
mod variables;

pub(crate) use parser::parse;
pub(crate) use types::Type;

use std::collections::HashMap;

/// The reason why a text is not PTX.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("PTX line {line}: {why}")]
pub struct SyntaxError {
    /// The line, counted from 1.
    pub line: u32,
    /// A description of the error.
    pub why: String,
}

/// A register of one function.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Register(pub u32);

/// The state space of a variable.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Generic,
    Global,
    Shared,
    Local,
    Param,
}

/// A declared variable or parameter.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub name: String,
    pub space: Space,
    pub align: usize,
    /// Bytes; 0 for `extern` arrays.
    pub size: usize,
    /// The first bytes; the rest is zero.
    pub init: Vec<u8>,
    /// True if the size is given at launch.
    pub is_extern: bool,
}

/// An operand as written, with registers resolved.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand {
    Register(Register),
    /// `!%p`
    Not(Register),
    Integer(u64),
    /// `0f…`: the bits of a float.
    Single(u32),
    /// `0d…`: the bits of a double.
    Double(u64),
    /// A special register such as `%tid.x`.
    Special(String),
    /// A variable, label or function, and an offset.
    Symbol(String, i64),
    /// `[base + offset]`
    Address(Box<Operand>, i64),
    /// `[map, {x, y}]`
    Tensor(Box<Operand>, Vec<Operand>),
    /// `{a, b}`
    Vector(Vec<Operand>),
    /// `(a, b)` of a call.
    List(Vec<Operand>),
    /// `%r|%p`
    Pair(Box<Operand>, Box<Operand>),
    /// `_`
    Discard,
}

/// A line of the CUDA source.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SourceLine {
    pub file: u32,
    pub line: u32,
}

/// One instruction.
#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    /// The predicate, and true if it is negated.
    pub guard: Option<(Register, bool)>,
    pub opcode: String,
    pub operands: Vec<Operand>,
    pub scope: u32,
    pub line: u32,
    pub source: SourceLine,
}

/// A kernel (`entry`) or device function.
#[derive(Debug, Default)]
pub(crate) struct Function {
    pub name: String,
    pub is_entry: bool,
    pub parameters: Vec<Variable>,
    pub returns: Vec<Variable>,
    /// The type of every register.
    pub registers: Vec<Type>,
    pub variables: Vec<Variable>,
    pub instructions: Vec<Instruction>,
    /// (scope, name) → index of the instruction after the label.
    labels: HashMap<(u32, String), usize>,
    /// (scope, name) → labels of a jump table.
    tables: HashMap<(u32, String), Vec<String>>,
    /// The scope around each scope; the outermost is its own.
    parents: Vec<u32>,
    /// `.maxntid` or `.reqntid`.
    pub max_threads: Option<u32>,
    /// `.reqnctapercluster`
    pub cluster: Option<[u32; 3]>,
}

impl Function {
    /// The entry of `map` called `name` in the innermost scope that `scope` sees.
    fn visible<'a, T>(
        &self,
        map: &'a HashMap<(u32, String), T>,
        mut scope: u32,
        name: &str,
    ) -> Option<&'a T> {
        loop {
            if let Some(value) = map.get(&(scope, name.to_string())) {
                return Some(value);
            }
            if scope == 0 {
                return None;
            }
            scope = self.parents[scope as usize];
        }
    }

    /// The index of the instruction after label `name`.
    pub fn label(&self, scope: u32, name: &str) -> Option<usize> {
        self.visible(&self.labels, scope, name).copied()
    }

    /// The labels of the jump table `name`.
    pub fn table(&self, scope: u32, name: &str) -> Option<&[String]> {
        self.visible(&self.tables, scope, name).map(Vec::as_slice)
    }
}

/// A parsed text.
#[derive(Debug, Default)]
pub(crate) struct Module {
    pub functions: Vec<Function>,
    pub variables: Vec<Variable>,
    /// Names of the CUDA files by their number.
    pub files: HashMap<u32, String>,
}
