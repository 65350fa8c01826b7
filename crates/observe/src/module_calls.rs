//! The calls of a model's modules.

use crate::lock;
use kiln_ir::Fact;
use kiln_lazy::Handle;
use kiln_lazy::node::serial;
use kiln_nn::{Hookable, Module};
use kiln_tensor::{HookHandles, Tensor};
use std::sync::{Arc, Mutex};
use std::thread;

/// A call of a module.
#[derive(Clone, Debug)]
pub struct ModuleCall {
    /// The module's path; that of the model itself is empty.
    pub path: String,
    /// The number of calls around it.
    pub depth: usize,
    /// The serial number from which on nodes were recorded in it.
    pub begin: u64,
    /// The serial number at which it ended.
    pub end: u64,
    /// Dtypes and shapes of the inputs.
    pub inputs: Vec<Fact>,
    /// Dtypes and shapes of the outputs.
    pub outputs: Vec<Fact>,
}

#[derive(Default)]
struct Seen {
    calls: Vec<ModuleCall>,
    /// The calls that have not ended.
    open: Vec<usize>,
}

/// Runs `f`, and returns the calls of a model and the modules within it on this thread, in the order in which they
/// began. The calls of a module without storage for hooks count as its parent's.
pub fn watch_modules<T>(model: &dyn Module, f: impl FnOnce() -> T) -> (T, Vec<ModuleCall>) {
    let calls_seen: Arc<Mutex<Seen>> = Arc::default();
    let this_thread = thread::current().id();
    let mut hooks = HookHandles::default();
    for (path, module) in model.named_modules() {
        let (enter, leave) = (calls_seen.clone(), calls_seen.clone());
        let before = module.register_forward_pre_hook(move |_, inputs| {
            if thread::current().id() == this_thread {
                lock(&enter).enter(&path, inputs);
            }
        });
        let after = module.register_forward_hook(move |_, _, outputs| {
            if thread::current().id() == this_thread {
                lock(&leave).leave(outputs);
            }
        });
        hooks.0.extend(before.into_iter().chain(after));
    }
    let result = f();
    drop(hooks);
    let calls = std::mem::take(&mut lock(&calls_seen).calls);
    (result, calls)
}

/// Returns the innermost call in which a node with this serial number was recorded.
pub fn innermost(calls: &[ModuleCall], serial: u64) -> Option<&ModuleCall> {
    let begun = calls.partition_point(|call| call.begin <= serial);
    calls[..begun].iter().rfind(|call| serial < call.end)
}

impl Seen {
    fn enter(&mut self, path: &str, inputs: &[Tensor]) {
        let call = ModuleCall {
            path: path.to_string(),
            depth: self.open.len(),
            begin: serial(),
            end: u64::MAX,
            inputs: facts(inputs),
            outputs: Vec::new(),
        };
        self.open.push(self.calls.len());
        self.calls.push(call);
    }

    fn leave(&mut self, outputs: &[Tensor]) {
        if let Some(at) = self.open.pop() {
            self.calls[at].end = serial();
            self.calls[at].outputs = facts(outputs);
        }
    }
}

/// Dtypes and shapes of tensors.
pub(crate) fn facts(tensors: &[Tensor]) -> Vec<Fact> {
    let handle = |t| <Tensor as AsRef<Handle>>::as_ref(t);
    tensors.iter().map(|t| handle(t).fact().clone()).collect()
}
