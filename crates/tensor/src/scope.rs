//! Recording a function: what it touches while it runs once for [`crate::compile`].

use crate::node::{Node, State, input_op};
use crate::{DType, Device, Error, ErrorKind, Result, Tensor, Var};
use hashbrown::HashMap;
use kiln_base::Dim;
use kiln_ir::{Fact, Facts, Role};
use std::cell::RefCell;
use std::panic::Location;

thread_local! {
    static SCOPE: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

/// What a function being compiled has touched.
#[derive(Default)]
pub(crate) struct Scope {
    /// The names that the user gave the symbols.
    symbols: Vec<String>,
    pub(crate) vars: Vec<ScopeVar>,
    /// Their positions, by the cells' ids.
    known: HashMap<u64, usize>,
    pub(crate) keys: Vec<(Tensor, Dim)>,
    /// Gradients of leaves, by their ids.
    grads: HashMap<u64, Option<Tensor>>,
}

pub(crate) struct ScopeVar {
    pub(crate) var: Var,
    pub(crate) placeholder: Tensor,
    pub(crate) current: Tensor,
    pub(crate) written: bool,
}

/// Whether this thread is recording a function for [`compile`](crate::compile).
pub fn is_recording() -> bool {
    SCOPE.with_borrow(Option::is_some)
}

/// A message with the user's names in place of `s0`, `s1`, …, while recording.
pub(crate) fn with_symbol_names(text: &str) -> String {
    SCOPE.with_borrow(|s| {
        let symbols = s.as_ref().map_or(&[][..], |s| &s.symbols);
        let name = |word: &str| {
            let number: usize = word.strip_prefix('s')?.parse().ok()?;
            symbols.get(number).cloned()
        };
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let mut out = String::new();
        for part in text.split_inclusive(|c| !is_word(c)) {
            let word = part.trim_end_matches(|c| !is_word(c));
            match name(word) {
                Some(name) => out.extend([&name, &part[word.len()..]]),
                None => out.push_str(part),
            }
        }
        out
    })
}

/// The recorded value of a cell, while recording.
pub(crate) fn get_var(var: &Var, loc: &'static Location<'static>) -> Option<Tensor> {
    SCOPE.with_borrow_mut(|s| s.as_mut().map(|s| s.var(var, loc).current.clone()))
}

/// Records an assignment, while recording.
pub(crate) fn assign_var(var: &Var, value: &Tensor) {
    SCOPE.with_borrow_mut(|s| {
        if let Some(s) = s.as_mut() {
            let entry = s.var(var, value.node.loc);
            entry.current = value.plain();
            entry.written = true;
        }
    });
}

/// The gradient of a leaf within the recording, while recording.
pub(crate) fn grad(leaf: u64) -> Option<Option<Tensor>> {
    SCOPE.with_borrow(|s| s.as_ref().map(|s| s.grads.get(&leaf).cloned().flatten()))
}

/// Sets the gradient of a leaf within the recording; gives it back where nothing is being recorded.
pub(crate) fn set_grad(leaf: u64, grad: Option<Tensor>) -> Option<Option<Tensor>> {
    SCOPE.with_borrow_mut(|s| match s {
        Some(s) => {
            s.grads.insert(leaf, grad);
            None
        }
        None => Some(grad),
    })
}

/// The key of `count` random numbers that each run reserves anew, while recording.
pub(crate) fn random_key(count: &Dim) -> Option<Tensor> {
    SCOPE.with_borrow_mut(|s| {
        let s = s.as_mut()?;
        let fact = Fact::new(DType::I64, [2i64]);
        let key = placeholder(
            fact,
            Role::RandomKey,
            None,
            Location::caller(),
            "random key",
        );
        s.keys.push((key.clone(), count.clone()));
        Some(key)
    })
}

impl Scope {
    fn var(&mut self, var: &Var, loc: &'static Location<'static>) -> &mut ScopeVar {
        let at = *self.known.entry(var.cell.id).or_insert_with(|| {
            let device = Some(var.device());
            let t = placeholder(var.cell.fact.clone(), var.cell.role, device, loc, "Var");
            self.vars.push(ScopeVar {
                var: var.clone(),
                placeholder: t.clone(),
                current: t,
                written: false,
            });
            self.vars.len() - 1
        });
        &mut self.vars[at]
    }
}

/// A tensor that stands for an input of the program.
pub(crate) fn placeholder(
    fact: Fact,
    role: Role,
    device: Option<Device>,
    loc: &'static Location<'static>,
    called: &'static str,
) -> Tensor {
    let op = input_op(fact.clone(), role);
    let facts = Facts::from_buf([fact]);
    Tensor::from_node(Node::new(
        op,
        facts,
        device,
        loc,
        called,
        State::Placeholder,
    ))
}

/// Ends the recording even if the user's function panics.
pub(crate) struct Recording;

impl Recording {
    pub(crate) fn start(symbols: &[String], loc: &'static Location<'static>) -> Result<Recording> {
        if is_recording() {
            let message = "a function is already being recorded on this thread";
            return Err(Error::new(
                ErrorKind::ReadWhileCompiling,
                "compile",
                message,
                loc,
            ));
        }
        SCOPE.set(Some(Scope {
            symbols: symbols.to_vec(),
            ..Scope::default()
        }));
        Ok(Recording)
    }

    pub(crate) fn finish(self) -> Scope {
        SCOPE.take().unwrap_or_default()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        SCOPE.set(None);
    }
}
