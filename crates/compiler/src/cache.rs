//! The plan cache: looked up by the structure of a recorded program, never by its data or source lines.

use crate::variant::{Expectation, Sizes, Variant};
use crate::{CompileError, Explain, Options, StructureHasher, pipeline};
use hashbrown::HashMap;
use kiln_base::{Loc, Scalar};
use kiln_ir::{Op, Output, Value};
use kiln_runtime::Executable;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

/// A recorded program as the cache sees it: flat, operands before users.
#[derive(Clone, Debug, Default)]
pub struct Recording<'a> {
    /// The ops; inputs are those with an [`Op::Input`], numbered in this order.
    pub nodes: Vec<Recorded<'a>>,
    /// All operands, one node after the other.
    pub operands: Vec<Value>,
    /// What is asked for.
    pub outputs: Vec<Output>,
}

/// A recorded op.
#[derive(Clone, Debug)]
pub struct Recorded<'a> {
    /// The op.
    pub op: &'a Op,
    /// A hash of [`Op::skeleton`].
    pub hash: u64,
    /// Its operands in [`Recording::operands`].
    pub inputs: Range<usize>,
    /// The user's call.
    pub loc: Loc,
}

/// A plan that fits a program.
pub struct Found {
    /// The program, ready to run.
    pub executable: Executable,
    /// For each output asked for its position among the plan's outputs; `None` for kept values that
    /// the plan does not write to memory.
    pub outputs: Vec<Option<usize>>,
    /// Indices of the promotable numbers (in recording order) that follow the inputs.
    pub scalars: Vec<usize>,
    /// What was done and why.
    pub explain: Explain,
}

/// A bounded cache of plans.
pub struct Cache {
    options: Options,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    entries: HashMap<u128, Vec<Arc<Entry>>>,
    stats: CacheStats,
    clock: u64,
    limit: usize,
}

/// What a cache has done so far.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Look-ups that found a plan.
    pub hits: u64,
    /// Plans compiled.
    pub compiled: u64,
    /// Plans dropped to stay within the limit.
    pub evicted: u64,
    /// Estimated size of the plans held, in bytes.
    pub bytes: usize,
}

/// One structure with its variants.
struct Entry {
    nodes: Vec<(Op, Range<usize>)>,
    operands: Vec<Value>,
    outputs: Vec<Output>,
    state: Mutex<EntryState>,
}

#[derive(Default)]
struct EntryState {
    /// The most recently used last.
    variants: Vec<Variant>,
    bytes: usize,
    used: u64,
}

/// At most this many variants stand under one structure.
const MAX_VARIANTS: usize = 8;

impl Recording<'_> {
    /// Number of inputs.
    pub fn input_count(&self) -> usize {
        let is_input = |n: &&Recorded| matches!(n.op, Op::Input(_));
        self.nodes.iter().filter(is_input).count()
    }

    /// The numbers that a plan may take as inputs, in recording order.
    pub fn scalars(&self) -> Vec<Scalar> {
        self.nodes.iter().filter_map(|n| n.op.scalar()).collect()
    }

    /// The user's lines: of the nodes, then of the nodes in their bodies, as [`Op::inner_nodes`] gives
    /// them.
    pub fn locs(&self) -> Vec<Loc> {
        let mut locs: Vec<Loc> = self.nodes.iter().map(|n| n.loc.clone()).collect();
        for n in &self.nodes {
            n.op.inner_nodes(&mut |n| locs.push(n.loc.clone()));
        }
        locs
    }

    fn hash(&self) -> u128 {
        let mut h = StructureHasher::default();
        for n in &self.nodes {
            h.update(&n.hash.to_le_bytes());
            h.update(&(n.inputs.len() as u32).to_le_bytes());
            for v in &self.operands[n.inputs.clone()] {
                h.update(&((v.node.0 as u64) << 32 | v.output as u64).to_le_bytes());
            }
        }
        for o in &self.outputs {
            use std::hash::Hash;
            o.hash(&mut h);
        }
        h.digest128()
    }
}

impl Entry {
    fn new(recording: &Recording) -> Entry {
        Entry {
            nodes: recording
                .nodes
                .iter()
                .map(|n| (n.op.skeleton(), n.inputs.clone()))
                .collect(),
            operands: recording.operands.clone(),
            outputs: recording.outputs.clone(),
            state: Mutex::default(),
        }
    }

    fn is(&self, recording: &Recording) -> bool {
        let same = |((op, inputs), n): (&(Op, Range<usize>), &Recorded)| {
            *inputs == n.inputs && op.same_structure(n.op)
        };
        self.nodes.len() == recording.nodes.len()
            && self.operands == recording.operands
            && self.outputs == recording.outputs
            && self.nodes.iter().zip(&recording.nodes).all(same)
    }

    fn state(&self) -> MutexGuard<'_, EntryState> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Cache {
    /// An empty cache that holds about `limit` bytes of plans compiled with these options.
    pub fn new(options: Options, limit: usize) -> Cache {
        Cache {
            options,
            inner: Mutex::new(Inner {
                limit,
                ..Inner::default()
            }),
        }
    }

    /// What the cache has done so far.
    pub fn stats(&self) -> CacheStats {
        self.inner().stats
    }

    /// A plan for the program; compiled if there is none yet.
    ///
    /// # Errors
    /// If the program can't be compiled.
    pub fn get(&self, recording: &Recording) -> Result<Arc<Found>, CompileError> {
        let entry = self.entry(recording);
        let sizes = Sizes::of(recording);
        let mut state = entry.state();
        state.used = self.tick();
        if let Some(at) = state
            .variants
            .iter()
            .rposition(|v| v.expects.matches(&sizes))
        {
            let found = state.variants[at].found.clone();
            let variant = state.variants.remove(at);
            state.variants.push(variant);
            self.inner().stats.hits += 1;
            return Ok(found);
        }
        let variant = self.make_variant(&state.variants, recording, &sizes)?;
        let found = variant.found.clone();
        let bytes = variant.bytes;
        state.variants.push(variant);
        state.bytes += bytes;
        let dropped = if state.variants.len() > MAX_VARIANTS {
            let gone = state.variants.remove(0).bytes;
            state.bytes -= gone;
            gone
        } else {
            0
        };
        drop(state);
        let mut inner = self.inner();
        inner.stats.compiled += 1;
        inner.stats.evicted += (dropped > 0) as u64;
        inner.stats.bytes += bytes;
        inner.stats.bytes -= dropped;
        evict(&mut inner, &entry);
        Ok(found)
    }

    /// A variant that generalises the most recent one it can, else one for these very sizes.
    fn make_variant(
        &self,
        previous: &[Variant],
        recording: &Recording,
        sizes: &Sizes,
    ) -> Result<Variant, CompileError> {
        let general = previous
            .iter()
            .rev()
            .find_map(|p| Expectation::generalize(p, sizes));
        if let Some(general) = general
            && let Ok(found) = self.compile(&general, recording)
        {
            return Ok(variant(general, sizes, found));
        }
        let baked = Expectation::baked(sizes);
        let found = self.compile(&baked, recording)?;
        Ok(variant(baked, sizes, found))
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
        let entry = Arc::new(Entry::new(recording));
        bucket.push(entry.clone());
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

/// A plan linked for the machine takes several times its encoded size, and its recording is kept too.
fn variant(expects: Expectation, sizes: &Sizes, found: Found) -> Variant {
    let plan = found.executable.plan().estimated_len();
    Variant {
        bytes: 16 * plan + found.explain.bytes() + 64 * sizes.dims.len(),
        expects,
        example: sizes.dims.clone(),
        found: Arc::new(found),
    }
}

/// Drops the structures that were not used for longest until the plans fit the limit. The one in use
/// stays, and so do those that another thread is compiling.
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
