//! The members and the hooks of a module.

use crate::Mode;
use crate::copy::Copies;
use crate::load_report::LoadReport;
use crate::module::Module;
use kiln_formats::StateDict;
use kiln_tensor::{HookHandle, Result, Tensor, Var};
use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

/// A member that a module holds itself.
#[derive(Clone, Copy)]
pub enum Member<'a> {
    /// A cell that training changes.
    Parameter(&'a Var),
    /// A cell that is saved but not trained, such as a running mean.
    Buffer(&'a Var),
    /// A module within the module.
    Child(&'a dyn Module),
    /// A switch between training and evaluation.
    Mode(&'a Mode),
}

/// The members that a module holds itself, in order of declaration, with names.
#[derive(Default)]
pub struct Members<'a>(Vec<(String, Member<'a>)>);

impl<'a> Members<'a> {
    /// Makes an empty list.
    pub fn new() -> Members<'a> {
        Members::default()
    }

    /// Adds a parameter.
    pub fn parameter(&mut self, name: impl Into<String>, var: &'a Var) {
        self.0.push((name.into(), Member::Parameter(var)));
    }

    /// Adds a buffer.
    pub fn buffer(&mut self, name: impl Into<String>, var: &'a Var) {
        self.0.push((name.into(), Member::Buffer(var)));
    }

    /// Adds a child, or its replacement ([`Module::set_submodule`]).
    pub fn child(&mut self, name: impl Into<String>, module: &'a dyn Module) {
        self.0.push((name.into(), Member::Child(module.current())));
    }

    /// Adds a mode, which has no name.
    pub fn mode(&mut self, mode: &'a Mode) {
        self.0.push((String::new(), Member::Mode(mode)));
    }

    /// Returns the number of members.
    #[allow(clippy::len_without_is_empty)] // for the derive
    #[doc(hidden)]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Makes the cells from the n-th member on parameters or buffers, whatever they were before.
    #[doc(hidden)]
    pub fn set_role(&mut self, from: usize, parameter: bool) {
        for (_, member) in &mut self.0[from..] {
            if let Member::Parameter(var) | Member::Buffer(var) = *member {
                *member = match parameter {
                    true => Member::Parameter(var),
                    false => Member::Buffer(var),
                };
            }
        }
    }

    /// The members with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Member<'a>)> {
        self.0.iter().map(|(name, member)| (name.as_str(), *member))
    }
}

/// The hooks of a module, and its replacement after [`Module::set_submodule`]. All layers have them; a
/// field of this type adds them to your own module. Copies of a module begin without hooks.
#[derive(Default)]
pub struct Hooks(Arc<List>);

#[derive(Default)]
struct List {
    count: AtomicUsize,
    hooks: Mutex<Vec<(u64, Hook)>>,
    replacement: OnceLock<Arc<dyn Replacement>>,
}

/// A module that replaces another.
pub(crate) trait Replacement: Any + Send + Sync {
    fn module(&self) -> &dyn Module;
    fn copy_with(&self, copies: &mut Copies) -> Result<Arc<dyn Replacement>>;
}

pub(crate) type Gradients = [Option<Tensor>];
type Before = dyn Fn(&dyn Module, &[Tensor]) -> Option<Vec<Tensor>> + Send + Sync;
type After = dyn Fn(&dyn Module, &[Tensor], &[Tensor]) -> Option<Vec<Tensor>> + Send + Sync;
pub(crate) type Backward =
    dyn Fn(&Gradients, &Gradients) -> Option<Vec<Option<Tensor>>> + Send + Sync;
type Saves = dyn Fn(&dyn Module, &str) + Send + Sync;
type Loads = dyn Fn(&dyn Module, &mut StateDict, &str) + Send + Sync;
type Loaded = dyn Fn(&dyn Module, &mut LoadReport) + Send + Sync;

/// A hook, by the event that calls it.
#[derive(Clone)]
pub(crate) enum Hook {
    Before(Arc<Before>),
    After(Arc<After>),
    Backward(Arc<Backward>),
    StateDict(Arc<Saves>),
    LoadStateDict(Arc<Loads>),
    Loaded(Arc<Loaded>),
}

impl Hooks {
    /// No hooks.
    pub fn new() -> Hooks {
        Hooks::default()
    }

    pub(crate) fn add(&self, hook: Hook) -> HookHandle {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed) as u64;
        let mut hooks = self.0.lock();
        hooks.push((id, hook));
        self.0.count.store(hooks.len(), Ordering::Release);
        let list = Arc::downgrade(&self.0);
        HookHandle::new(move || {
            if let Some(list) = Weak::upgrade(&list) {
                let mut hooks = list.lock();
                hooks.retain(|(other, _)| *other != id);
                list.count.store(hooks.len(), Ordering::Release);
            }
        })
    }

    /// The replacement of the module with these hooks, if there is one.
    pub(crate) fn replacement(&self) -> Option<&dyn Replacement> {
        self.0.replacement.get().map(|new| &**new)
    }

    /// Sets the replacement, once. Returns false if there is one.
    pub(crate) fn replace(&self, new: Arc<dyn Replacement>) -> bool {
        self.0.replacement.set(new).is_ok()
    }

    /// Returns the hooks of a copy: none, and the copy of the replacement.
    pub(crate) fn copy_with(&self, copies: &mut Copies) -> Result<Hooks> {
        let hooks = Hooks::new();
        if let Some(new) = self.0.replacement.get() {
            hooks.replace(new.copy_with(copies)?);
        }
        Ok(hooks)
    }

    /// The hooks in the order in which they were registered, if there are any.
    pub(crate) fn registered(&self) -> Option<Registered> {
        let none = self.0.count.load(Ordering::Acquire) == 0;
        (!none).then(|| Registered(self.0.lock().iter().map(|(_, hook)| hook.clone()).collect()))
    }
}

impl List {
    fn lock(&self) -> MutexGuard<'_, Vec<(u64, Hook)>> {
        self.hooks.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Clone for Hooks {
    /// Returns no hooks, and the replacement: a copy begins without any.
    fn clone(&self) -> Hooks {
        let replacement = self.0.replacement.clone();
        Hooks(Arc::new(List {
            replacement,
            ..List::default()
        }))
    }
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hooks({})", self.0.count.load(Ordering::Relaxed))
    }
}

/// The hooks of a module at one moment.
pub(crate) struct Registered(pub Vec<Hook>);

impl dyn Module {
    /// Returns the last replacement of this module, or the module itself.
    pub(crate) fn current(&self) -> &dyn Module {
        let mut last = self.as_module();
        while let Some(new) = last.hooks().and_then(Hooks::replacement) {
            last = new.module();
        }
        last
    }
}
