//! The plan cache. Its key is the structure of a recorded program, never its data or source lines.

use crate::entry::{Cause, Entry, EntryState, REFUSALS};
use crate::generalize::{Refusal, differences, generalize};
use crate::recording::{Fit, Found, Reason, Recording};
use crate::tune::Mode;
use crate::variant::{Expectation, Kind, Sizes, Variant};
use crate::{CompileError, Explain, Options, pipeline};
use hashbrown::HashMap;
use kiln_base::Scalar;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// A bounded cache of plans.
pub struct Cache {
    options: Options,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    entries: HashMap<u128, Vec<Arc<Entry>>>,
    /// The structure that was recorded last.
    latest: Weak<Entry>,
    stats: CacheStats,
    clock: u64,
    limit: usize,
}

/// The counters of a cache.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Look-ups that found a plan.
    pub hits: u64,
    /// Plans compiled.
    pub compiled: u64,
    /// The number of these that were for a new structure.
    pub new: u64,
    /// The number of those for other numbers or offsets, which are then inputs of the plan.
    pub numbers: u64,
    /// The number of those for other sizes that are constants of the plan.
    pub sizes: u64,
    /// The number of those for other sizes, some of which became symbols.
    pub symbolic: u64,
    /// Plans dropped to stay within the limit.
    pub evicted: u64,
    /// Estimated size of the plans held, in bytes.
    pub bytes: usize,
}

impl Cache {
    /// Returns an empty cache that holds about `limit` bytes of plans compiled with these options.
    pub fn new(options: Options, limit: usize) -> Cache {
        Cache {
            options,
            inner: Mutex::new(Inner {
                limit,
                ..Inner::default()
            }),
        }
    }

    /// The counters of the cache.
    pub fn stats(&self) -> CacheStats {
        self.inner().stats
    }

    /// Returns a plan for the program, compiled if there is none yet.
    ///
    /// # Errors
    /// If the program can't be compiled.
    pub fn get(&self, recording: &Recording) -> Result<Fit, CompileError> {
        let entry = self.entry(recording);
        let sizes = Sizes::of(recording);
        let mut state = entry.state();
        state.used = self.tick();
        if let Some(fit) = state.find(&entry.kinds, &sizes) {
            self.inner().stats.hits += 1;
            return Ok(fit);
        }
        state.learn(&entry.kinds, &sizes);
        let (variant, cause) = self.make_variant(&entry, &mut state, recording, &sizes)?;
        state.remember(&sizes);
        state.compiled += 1;
        let fit = Fit {
            extents: variant.expects.extents(&sizes),
            plan: variant.plan.clone(),
            compiled: Some(Reason {
                count: state.compiled,
                text: variant.why.clone(),
            }),
        };
        let bytes = variant.bytes;
        state.variants.push(variant);
        let dropped = state.drop_one(&entry.kinds);
        state.bytes += bytes;
        state.bytes -= dropped;
        drop(state);
        let mut inner = self.inner();
        inner.stats.compiled += 1;
        inner.stats.count(cause);
        inner.stats.evicted += (dropped > 0) as u64;
        inner.stats.bytes += bytes;
        inner.stats.bytes -= dropped;
        evict(&mut inner, &entry);
        Ok(fit)
    }

    /// Returns the reasons for the plans of the program's structure, the most recently used plan last.
    pub fn reasons(&self, recording: &Recording) -> Vec<String> {
        let entry = self.entry(recording);
        let state = entry.state();
        state.variants.iter().map(|v| v.why.clone()).collect()
    }

    /// Compiles a variant for the program; also returns the reason why it is needed.
    fn make_variant(
        &self,
        entry: &Entry,
        state: &mut EntryState,
        recording: &Recording,
        sizes: &Sizes,
    ) -> Result<(Variant, Cause), CompileError> {
        let kinds = &entry.kinds[..];
        let cause = state.cause(kinds, sizes);
        let mut why = match state.examples.last() {
            Some(last) => differences(recording, kinds, last, sizes),
            None => entry.new.clone(),
        };
        let may_open = self.options.tune.mode != Mode::Deterministic;
        let is_first = state.is_first(kinds, sizes);
        if may_open && !is_first && state.refused < REFUSALS {
            match self.compile_general(kinds, state, recording, sizes, true) {
                Ok((expects, plan)) => {
                    let has_symbols = cause == Cause::Sizes && expects.has_symbolic_sizes();
                    if has_symbols {
                        why += "; sizes that differ are symbols";
                    }
                    let cause = if has_symbols { Cause::Symbols } else { cause };
                    return Ok((variant(expects, why, plan), cause));
                }
                Err(Refusal { node, text }) => {
                    state.refused += 1;
                    let node = &recording.nodes[node.min(recording.nodes.len() - 1)];
                    let (op, loc) = (node.op.name(), &node.loc);
                    why += &format!(
                        "; sizes can't be symbols: `{op}` at {loc}: {text}; pad to a few sizes to compile less"
                    );
                }
            }
        } else if may_open && cause == Cause::Sizes {
            why += match is_first {
                true => "; the first three sizes have plans of their own, later ones share one",
                false => "; its sizes could not be symbols; pad to a few sizes to compile less",
            };
        }
        if cause == Cause::Numbers {
            why += "; what differs is an input of the plan from now on";
        }
        if let Ok((expects, plan)) = self.compile_general(kinds, state, recording, sizes, false) {
            return Ok((variant(expects, why, plan), cause));
        }
        let baked = Expectation::baked(sizes);
        let plan = self.compile(&baked, recording)?;
        Ok((variant(baked, why, plan), cause))
    }

    /// Compiles a plan whose inputs include the numbers and offsets that have differed, and, if `open`, such sizes too.
    fn compile_general(
        &self,
        kinds: &[Kind],
        state: &EntryState,
        recording: &Recording,
        sizes: &Sizes,
        open: bool,
    ) -> Result<(Expectation, Found), Refusal> {
        let expects = generalize(recording, kinds, &state.examples, sizes, &state.free, open)?;
        let plan = self.compile(&expects, recording).map_err(|e| Refusal {
            node: match e {
                CompileError::Unsupported { at, .. } => at.unwrap_or(usize::MAX),
                CompileError::Custom { at, .. } => at,
                _ => usize::MAX,
            },
            text: e.to_string(),
        })?;
        Ok((expects, plan))
    }

    fn compile(&self, expects: &Expectation, recording: &Recording) -> Result<Found, CompileError> {
        let graph = recording
            .build(Some(expects))
            .map_err(|e| CompileError::Internal(e.to_string()))?;
        let locs = recording.locs();
        let compilation = pipeline::compile(&graph, &locs, &self.options)?;
        let is_input = |(i, s): (usize, &Option<Scalar>)| s.is_none().then_some(i);
        Ok(Found {
            executable: compilation.executable,
            outputs: compilation.outputs,
            scalars: expects
                .scalars
                .iter()
                .enumerate()
                .filter_map(is_input)
                .collect(),
            explain: Explain {
                stages: None,
                ..compilation.explain
            },
        })
    }

    fn entry(&self, recording: &Recording) -> Arc<Entry> {
        let hash = recording.hash();
        let mut inner = self.inner();
        let bucket = inner.entries.entry(hash).or_default();
        if let Some(entry) = bucket.iter().find(|e| e.is(recording)) {
            return entry.clone();
        }
        let latest = inner.latest.upgrade();
        let entry = Arc::new(Entry::new(recording, latest.as_deref()));
        inner.entries.entry(hash).or_default().push(entry.clone());
        inner.latest = Arc::downgrade(&entry);
        entry
    }

    fn tick(&self) -> u64 {
        let mut inner = self.inner();
        inner.clock += 1;
        inner.clock
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl CacheStats {
    fn count(&mut self, cause: Cause) {
        *match cause {
            Cause::New => &mut self.new,
            Cause::Numbers => &mut self.numbers,
            Cause::Sizes => &mut self.sizes,
            Cause::Symbols => &mut self.symbolic,
        } += 1;
    }
}

/// Bytes of memory for each byte of an encoded plan: its structures take more than their encoding, it is kept linked
/// for the machine, and its recording is kept too.
const BYTES_HELD: usize = 72;

fn variant(expects: Expectation, why: String, found: Found) -> Variant {
    let plan = found.executable.plan().estimated_len();
    Variant {
        bytes: BYTES_HELD * plan + found.explain.bytes() + 64 * expects.dims.len(),
        expects,
        why,
        plan: Arc::new(found),
    }
}

/// Drops the least recently used structures until the plans fit the limit. The one in use stays, and so do those that
/// another thread is compiling.
fn evict(inner: &mut Inner, keep: &Arc<Entry>) {
    while inner.stats.bytes > inner.limit {
        let oldest = inner
            .entries
            .iter()
            .flat_map(|(hash, bucket)| bucket.iter().map(move |e| (hash, e)))
            .filter(|(_, e)| !Arc::ptr_eq(e, keep))
            .filter_map(|(hash, e)| {
                let state = e.state.try_lock().ok()?;
                Some((state.used, *hash, state.bytes, state.variants.len()))
            })
            .min();
        let Some((used, hash, bytes, plans)) = oldest else {
            return;
        };
        if let Some(bucket) = inner.entries.get_mut(&hash) {
            bucket.retain(|e| e.state.try_lock().map_or(true, |s| s.used != used));
            if bucket.is_empty() {
                inner.entries.remove(&hash);
            }
        }
        inner.stats.bytes -= bytes.min(inner.stats.bytes);
        inner.stats.evicted += plans as u64;
    }
}
