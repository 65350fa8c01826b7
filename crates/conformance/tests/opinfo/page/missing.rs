//! Names of PyTorch that Kiln lacks: the public ones that the page does not show and no crate defines.

use super::{bare, every_row, layers, repository, scan};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

/// All public names of PyTorch 2.15, which `torch_names.py` lists.
pub(super) fn public() -> impl Iterator<Item = &'static str> {
    include_str!("torch_names.txt").lines()
}

/// Names, and the reason why they are missing. A `*` at either end stands for any text. The first reason counts.
const REASONS: &[(&[&str], &str)] = &[
    (
        &["torch.nn.init.*", "torch.nn.utils.clip_grad_norm"],
        "PyTorch's older name of what ends in `_`",
    ),
    (
        &["torch.linalg.eig", "torch.linalg.eigvals"],
        "eigenvalues of matrices that are not symmetric are complex, and there are no complex numbers; `eigh` is for \
         symmetric ones",
    ),
    (
        &[
            "torch.fft.fftfreq",
            "torch.fft.rfftfreq",
            "torch.fft.ifftshift",
        ],
        "`arange` and `roll` do it",
    ),
    (
        &["*.adjoint", "Tensor.H", "Tensor.mH"],
        "`x.transpose(-2, -1)`: nothing is complex",
    ),
    (
        &[
            "torch.fft.*",
            "*.stft",
            "*.istft",
            "*.complex",
            "*.polar",
            "*.angle",
            "*.imag",
            "*.real",
            "*.isreal",
            "torch.view_as_*",
            "*.conj",
            "*.conj_physical",
            "*.conj_physical_",
            "*.is_complex",
            "*.is_conj",
            "*.is_neg",
            "*.resolve_conj",
            "*.resolve_neg",
            "Tensor.cdouble",
            "Tensor.cfloat",
            "Tensor.chalf",
            "torch.cuda.Complex*",
        ],
        "there are no complex numbers",
    ),
    (
        &[
            "*sparse*",
            "*coalesce*",
            "*.col_indices*",
            "*.crow_indices*",
            "*.indices",
            "*.values",
            "torch.indices_copy",
            "torch.values_copy",
            "Tensor.dense_dim",
            "Tensor.to_dense",
            "*.hspmm",
            "*.smm",
            "*.sspaddmm",
            "torch.optim.SparseAdam",
        ],
        "tensors are dense",
    ),
    (
        &[
            "*quant*",
            "Tensor.q_*",
            "Tensor.int_repr",
            "Tensor.qscheme",
            "torch.ao",
        ],
        "quantised tensors are bytes beside their scale",
    ),
    (
        &["torch.nn.functional.fold", "torch.nn.functional.lp_pool*"],
        "the layers `Fold`, `LPPool1d` and their like do it",
    ),
    (
        &["torch.nn.Upsampling*", "torch.nn.functional.upsample*"],
        "`Upsample` and `interpolate` do it",
    ),
    (
        &["torch.nn.TripletMarginWithDistanceLoss"],
        "the function `triplet_margin_with_distance_loss` does it",
    ),
    (
        &["torch.optim.lr_scheduler.ChainedScheduler"],
        "`Scheduler::chained` does it",
    ),
    (
        &["torch.optim.Muon"],
        "not written; a `Rule` of your own is one",
    ),
    (
        &[
            "torch.optim.Optimizer",
            "torch.optim.lr_scheduler.LRScheduler",
            "torch.nn.RNNBase",
            "torch.nn.RNNCellBase",
        ],
        "classes to inherit from: the traits `Rule`, `Schedule` and `Forward`",
    ),
    (
        &["torch.multiprocessing", "*share_memory_", "*.is_shared"],
        "of `Var`s and modules: `share_memory_`, `is_shared`, and `kiln::distributed::spawn`",
    ),
    (
        &[
            "*.as_strided_",
            "*.detach_",
            "*.resize_*",
            "*.set_",
            "*.is_set_to",
            "torch.autograd.graph.allow_mutation*",
            "torch.autograd.graph.increment_version",
        ],
        "tensors don't change, and a `Var` keeps its elements",
    ),
    (
        &["torch.*_copy", "*.unsafe_chunk", "*.unsafe_split"],
        "views are never written to: the view itself",
    ),
    (
        &[
            "Tensor.bfloat16",
            "Tensor.bool",
            "Tensor.half",
            "Tensor.double",
            "Tensor.int",
            "Tensor.short",
            "Tensor.byte",
            "Tensor.char",
            "Tensor.type",
        ],
        "`x.to_dtype(DType::BF16)` and its like; a `Module` has `bfloat16`, `half`, `float` and `double`",
    ),
    (
        &[
            "*.is_floating_point",
            "Tensor.is_signed",
            "*.can_cast",
            "*.promote_types",
            "*.result_type",
        ],
        "methods of `DType`, and `(x + y).dtype()`",
    ),
    (
        &["torch.e", "torch.inf", "torch.nan", "torch.pi"],
        "Rust's `f64::consts::PI`, `f64::INFINITY` and their like",
    ),
    (&["torch.newaxis"], "`NewAxis`"),
    (
        &["torch.Generator"],
        "`Generator`, and `with_seed` around a call",
    ),
    (&["torch.autograd.graph.Node"], "`x.grad_fn()` gives one"),
    (&["torch.range"], "`arange`, whose end is exclusive"),
    (
        &["*.from_numpy", "torch.asarray"],
        "`Tensor::from_ndarray` and `Tensor::from`",
    ),
    (&["Tensor.new_tensor"], "`Tensor::from`"),
    (&["Tensor.index"], "`x.i(..)`"),
    (&["Tensor.itemsize"], "`x.element_size()`"),
    (
        &["Tensor.ndimension", "Tensor.nelement"],
        "`x.ndim()` and `x.numel()?`",
    ),
    (&["*.equal"], "`x.eq(&y).all(())`"),
    (&["*.is_nonzero"], "`x.item::<bool>()?`"),
    (
        &["*.broadcast_tensors", "torch.broadcast_shapes"],
        "`x.expand(..)`; operators broadcast by themselves",
    ),
    (
        &["*.hsplit", "*.vsplit", "*.dsplit"],
        "`x.tensor_split(..)` along a dim",
    ),
    (
        &["torch.save", "torch.load"],
        "`kiln::save` and `kiln::load`, of the feature `pytorch`",
    ),
    (
        &[
            "*.seed",
            "*.initial_seed",
            "torch.cuda.seed_all",
            "torch.cuda.*rng_state_all",
            "*.thread_safe_generator",
        ],
        "`manual_seed` and `get_rng_state`: there is one generator",
    ),
    (
        &[
            "torch.nn.Container",
            "torch.nn.NLLLoss2d",
            "torch.autograd.Variable",
            "*.set_default_tensor_type",
        ],
        "PyTorch itself has no use for them any more",
    ),
    (&["torch.nn.Uninitialized*"], "lazy layers hold an `Option`"),
    (&["torch.utils.data.default_co*"], "the trait `Collate`"),
    (
        &[
            "torch.utils.data.*DataPipe*",
            "torch.utils.data.DataChunk",
            "torch.utils.data.*datapipe*",
            "torch.utils.data.*_validation*",
            "torch.utils.data.non_deterministic",
        ],
        "an `IterableDataset` is any iterator",
    ),
    (
        &["torch.nn.utils.rnn.invert_permutation"],
        "`argsort`; packed sequences keep their order",
    ),
    (
        &[
            "*Storage",
            "torch.*Tensor",
            "*.is_storage",
            "Tensor.storage*",
            "*.is_tensor",
            "*.typename",
            "*data_ptr",
            "*.as_subclass",
        ],
        "types are Rust's; a tensor's dtype is `x.dtype()`, its bytes are `x.to_bytes()?`",
    ),
    (
        &["torch.Sym*", "torch.sym_*"],
        "sizes are `Dim`, with Rust's operators",
    ),
    (
        &[
            "Tensor.is_cpu",
            "Tensor.is_ipu",
            "Tensor.is_meta",
            "Tensor.is_mps",
            "Tensor.is_x*",
            "Tensor.ipu",
            "Tensor.mtia",
            "Tensor.xpu",
            "Tensor.to_mkldnn",
            "torch.xpu",
            "torch.mps",
            "torch.mtia",
            "torch.accelerator",
            "torch.get_device_module",
        ],
        "a `Device` is the CPU or an NVIDIA GPU",
    ),
    (
        &[
            "*deterministic*",
            "*float32_matmul_precision",
            "*.is_warn_always_enabled",
            "*.set_warn_always",
            "*.set_flush_denormal",
            "*interop_threads",
        ],
        "results are deterministic; `set_precision`, `set_warning_hook` and `set_threads` are there",
    ),
    (
        &[
            "torch.Event",
            "torch.Stream",
            "*.record_stream",
            "*.pin_memory",
            "*.is_pinned",
            "torch.cuda.*",
            "torch.autograd.graph.set_*stream*",
        ],
        "plans place streams, events, graphs and memory themselves; `MemoryStats` and `profiler` tell of them",
    ),
    (&["*inference*"], "`no_grad`"),
    (
        &["*.vmap", "torch.func.*"],
        "not written; `compile` takes batches of any size",
    ),
    (
        &[
            "torch.jit",
            "torch.export",
            "torch.fx",
            "torch.compiler",
            "torch.library",
            "torch.package",
        ],
        "`compile`, `CustomOp` and `package` are for that",
    ),
    (&["torch.onnx"], "`kiln::onnx` reads and writes models"),
    (&["torch.profiler"], "`kiln::profiler`"),
    (
        &["*.SyncBatchNorm", "torch.distributed"],
        "`kiln::distributed`",
    ),
    (
        &["torch.hub"],
        "nothing is downloaded; `kiln-models` has networks",
    ),
    (
        &["Tensor.apply_", "Tensor.map_"],
        "a compiler can't fuse functions of single numbers",
    ),
];

/// Modules whose operators are PyTorch's under another path.
const OPERATORS: [&str; 7] = [
    "torch",
    "Tensor",
    "torch.nn.functional",
    "torch.linalg",
    "torch.special",
    "torch.autograd",
    "torch.amp",
];

/// Sources whose public names are PyTorch's.
const SOURCES: [(&str, &str); 8] = [
    ("torch.nn", "nn/src"),
    ("torch.nn.init", "nn/src/init.rs"),
    ("torch.nn.utils", "nn/src/optim/clip.rs"),
    ("torch.optim.swa_utils", "nn/src/running_norm.rs"),
    ("torch.utils.data", "data/src"),
    ("torch.cuda", "tensor/src/cuda.rs"),
    ("torch.random", "lazy/src/random.rs"),
    ("torch.func", "tensor/src/autograd"),
];

/// Names that the page shows or that have a type of their own here.
static SHOWN: LazyLock<BTreeSet<&str>> = LazyLock::new(|| {
    let rows = every_row().flat_map(|row| row.torch).map(|name| bare(name));
    let types = [layers::LAYERS, layers::OPTIMIZERS, layers::SCHEDULES];
    rows.chain(types.into_iter().flatten().copied()).collect()
});

static DEFINED: LazyLock<BTreeMap<&str, BTreeSet<String>>> = LazyLock::new(|| {
    let crates = repository().join("crates");
    let sources = SOURCES.map(|(module, path)| (module, scan::public_names(&crates.join(path))));
    let mut operators = scan::operators(&crates.join("tensor/src"));
    let mut words = BTreeSet::new();
    scan::code_words(&crates.join("tensor/src/in_place.rs"), &mut words);
    scan::code_words(&crates.join("tensor/src/draw.rs"), &mut words);
    operators.extend(words.into_iter().filter(|word| word.ends_with('_')));
    let operators = OPERATORS.map(|module| (module, operators.clone()));
    operators.into_iter().chain(sources).collect()
});

/// Splits a name into its module and the rest.
fn split(name: &str) -> (&str, &str) {
    name.rsplit_once('.').expect("names have modules")
}

/// True if a name of PyTorch is here, under that name or in the row of another one.
fn is_there(name: &str) -> bool {
    let (module, last) = split(name);
    let is_defined = DEFINED
        .get(module)
        .is_some_and(|names| names.contains(last));
    let is_operator = OPERATORS.contains(&module);
    let shown_elsewhere = || {
        OPERATORS
            .iter()
            .any(|m| SHOWN.contains(&format!("{m}.{last}")[..]))
    };
    // `absolute_` is there, since the row of `absolute` calls `abs`, and there is `abs_`.
    let in_place = || {
        let plain = last.strip_suffix('_')?;
        let names = [format!("torch.{plain}"), format!("Tensor.{plain}")];
        let row =
            every_row().find(|row| row.torch.iter().any(|t| names.contains(&t.to_string())))?;
        let mut calls = scan::calls(row.code).into_iter();
        Some(calls.any(|call| DEFINED["Tensor"].contains(&format!("{call}_"))))
    };
    SHOWN.contains(name)
        || is_defined
        || is_operator && (shown_elsewhere() || in_place().unwrap_or(false))
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((begin, end)) => {
            let rest = name.strip_prefix(begin);
            match end.strip_suffix('*') {
                Some(inner) => rest.is_some_and(|rest| rest.contains(inner)),
                None => rest.is_some_and(|rest| rest.ends_with(end)),
            }
        }
    }
}

fn absent() -> Vec<&'static str> {
    public().filter(|name| !is_there(name)).collect()
}

/// The names that are missing, by the reason.
pub(super) static MISSING: LazyLock<Vec<(Vec<&str>, &str)>> = LazyLock::new(|| {
    let mut left = absent();
    let mut all = Vec::new();
    for (patterns, why) in REASONS {
        let (these, others) = left
            .into_iter()
            .partition(|name| patterns.iter().any(|p| matches(p, name)));
        left = others;
        all.push((these, *why));
    }
    left.sort_by_key(|name| split(name).0);
    let modules = left.chunk_by(|a, b| split(a).0 == split(b).0);
    all.extend(modules.map(|names| (names.to_vec(), "not written")));
    all
});

/// All names that are missing.
pub(super) fn names() -> BTreeSet<&'static str> {
    MISSING
        .iter()
        .flat_map(|(names, _)| names)
        .copied()
        .collect()
}

#[test]
fn reasons_are_those_of_missing_names() {
    let absent = absent();
    let is_idle = |pattern: &&&str| !absent.iter().any(|name| matches(pattern, name));
    let idle: Vec<_> = (REASONS.iter().flat_map(|(patterns, _)| *patterns))
        .filter(is_idle)
        .collect();
    assert!(idle.is_empty(), "these are not missing: {idle:?}");
}

#[test]
fn types_have_names_of_pytorch() {
    let public: BTreeSet<&str> = public().collect();
    let types = [layers::LAYERS, layers::OPTIMIZERS, layers::SCHEDULES];
    let strange: Vec<_> = types
        .into_iter()
        .flatten()
        .filter(|name| !public.contains(*name))
        .collect();
    assert!(strange.is_empty(), "{strange:?}");
}
