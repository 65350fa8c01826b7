//! Kiln is a lazy compute-graph compiler for tensors.
//!
//! User code records tensor operations; nothing runs. When a value is asked for, the recorded graph is
//! optimised, fused, lowered to kernels, planned into one memory arena and run on every core. Recording
//! the same program again compiles nothing.
//!
//! ```
//! use kiln::{DType, Tensor};
//!
//! let x = Tensor::arange(0, 6, 1).to_dtype(DType::F32).reshape([2, 3]);
//! let y = (&x * 2.0 + 1.0).relu().sum([1]); // recorded, not run
//! assert_eq!(y.to_vec::<f32>()?, [9.0, 27.0]); // one fused kernel runs here
//! # Ok::<(), kiln::Error>(())
//! ```
//!
//! A function can be compiled once and run many times, with sizes left open:
//!
//! ```
//! use kiln::{DType, Spec, Tensor, Var, compile};
//!
//! let weight = Var::new(&Tensor::ones([3, 2], DType::F32))?;
//! let linear = compile(Spec::new(DType::F32, ("batch", 3)), |x| x.matmul(&weight).relu())?;
//! let y = linear.run(Tensor::ones([4, 3], DType::F32))?;
//! assert_eq!(y.to_vec::<f32>()?, [3.0; 8]);
//! # Ok::<(), kiln::Error>(())
//! ```

//!
//! # From PyTorch
//!
//! Methods have PyTorch's names and semantics; `docs/pytorch.md` lists them all. What Rust writes
//! otherwise:
//!
//! | PyTorch | Kiln |
//! |---|---|
//! | `x[1:3, -1]`, `x[..., None]`, `x[mask]`, `x[[0, 2]]` | `x.i((1..3, -1))`, `x.i((Ellipsis, NewAxis))`, `x.i(&mask)`, `x.i([0, 2])`; see [`Tensor::i`] |
//! | `x[:, 0] = v`, `t[[1, 3]] = u[[1, 3]]` | `let x = x.set((.., 0), v)`, `let t = t.set([1, 3], &u.i([1, 3]))`; see [`Tensor::set`] |
//! | `x += y`, `x.mul_(2)` on a temporary | `let x = x + y`, `let x = x * 2`: shadowing; fused, it costs no copy |
//! | the same on a parameter, buffer or optimiser state | [`Var::add_`], [`Var::sub_`], [`Var::mul_`], [`Var::div_`], [`Var::copy_`], [`Var::fill_`], [`Var::zero_`], and [`Var::set`] for `w[0] = v` |
//! | `x.sum("C")`, `x.refine_names("N", "C")` | `x.sum("C")`, `x.refine_names(["N", "C"])`; see [`Tensor::refine_names`] |
//! | `torch.tensor([[1., 2.]])`, `float(x)`, `x.tolist()` | `Tensor::from([[1.0f32, 2.0]])`, `x.item::<f32>()?`, `x.to_vec::<f32>()?` |
//! | `print(x)`, `torch.set_printoptions(precision=2)` | `println!("{x}")`, [`set_printoptions`] |
//! | `torch.cond`, `while_loop`, a recurrence (JAX's `lax.scan`), `torch.utils.checkpoint` | [`cond`], [`while_loop`], [`scan`], [`checkpoint`] |
//! | `torch.from_numpy(a)`, `x.numpy()` | `Tensor::from_ndarray(&a)`, `x.to_ndarray::<f32>()?`, with the feature `ndarray` |
//! | `torch.linalg.inv(x)`, `torch.linalg.svd_with(Svd::new().full_matrices(x))`, … | `x.inv()`, `x.svd()`, with the feature `linalg` |
//! | `torch.distributions` | [`distributions`] |
//! | `torch.load(f)`, `torch.save(x, f)` | [`load`]`(f)`, `kiln::save(x, f)`, with the feature `pytorch` |
//! | `torchvision.transforms`, `datasets`, `utils`, `PIL.Image` | `vision::transforms`, …, `vision::Image`, with the feature `vision` |
//! | `onnx.load`, `onnxruntime.InferenceSession` | `onnx::load`, `onnx::Model`, with the feature `onnx` |
//! | `torch.utils.tensorboard.SummaryWriter` | `tensorboard::SummaryWriter`, with the feature `tensorboard` |
//! | `torchinfo.summary`, `FlopCounterMode`, fvcore's `FlopCountAnalysis` | [`summary`], [`flops`], [`Convention`] |
//! | `torchmetrics`, `sklearn.metrics` | [`metrics`] |
//! | `torch.onnx.export(model, args, f)` | `onnx::export(&compiled, f, onnx::Export::new())`, with the feature `onnx` |
//! | `np.load` of an archive, `pd.read_csv` | `formats::read_npz`, with the feature `npz`; `formats::CsvTable`, with the feature `csv` |
//!
//! **In place.** A tensor never changes: what other names hold of it stays. So the in-place names exist
//! on [`Var`] alone, where they assign the cell a new value (snapshots that [`Var::get`] gave stay as
//! they are), and whether that value is written over the old memory is decided by the compiler. An
//! in-place result takes the cell's dtype and must have its shape. Parts are views in reading only:
//! `w.i(0)` is a value, and writing to row 0 is `w.set(0, row)`.
//!
//! ```
//! use kiln::{Tensor, Var};
//!
//! let x = Tensor::from([1.0f32, 2.0, 3.0]);
//! let x = x.set(0, 10.0); // x[0] = 10
//! let x = x * 2.0; // x.mul_(2)
//! let weight = Var::new(&x)?;
//! weight.add_(&Tensor::from([1.0f32, 0.0, 0.0]))?; // weight.add_(..)
//! weight.set(1.., 0.0)?; // weight[1:] = 0
//! assert_eq!(weight.to_vec::<f32>()?, [21.0, 0.0, 0.0]);
//! # Ok::<(), kiln::Error>(())
//! ```
//!
//! **Views.** Kiln's views are index maps without strides, so every reshape is free or fused. `stride`,
//! `is_contiguous` and the error of `view` follow PyTorch's rules all the same.

pub use kiln_data as data;
#[cfg(feature = "distributed")]
pub use kiln_distributed as distributed;
pub use kiln_distributions as distributions;
pub use kiln_formats as formats;
pub use kiln_formats::{load, load_with};
#[cfg(feature = "pytorch")]
pub use kiln_formats::{save, save_legacy};
pub use kiln_nn::amp;
pub use kiln_observe as observe;
pub use kiln_observe::{Convention, Health, flops, metrics, summary, trace_values};
#[cfg(feature = "onnx")]
pub use kiln_onnx as onnx;
/// [`kiln_tensor::Nest`] for this crate's users.
pub use kiln_tensor::KilnNest as Nest;
pub use kiln_tensor::*;
#[cfg(feature = "tensorboard")]
pub use kiln_tensorboard as tensorboard;
#[cfg(feature = "vision")]
pub use kiln_vision as vision;

pub mod nn {
    //! Layers, initialisers, optimisers and schedules, under PyTorch's names.
    //!
    //! ```
    //! use kiln::nn::{BatchNorm2d, Conv2d, Forward, Kernel, Linear, Module, module};
    //! use kiln::{DType, Result, Tensor};
    //!
    //! module!(struct Net(classes: usize) {
    //!     conv: Conv2d = Conv2d::new(1, 8, Kernel::new(3).padding(1).bias(false)),
    //!     norm: BatchNorm2d = BatchNorm2d::new(8),
    //!     head: Linear = Linear::new(8 * 14 * 14, classes),
    //! });
    //!
    //! impl Forward for Net {
    //!     fn forward(&self, x: Tensor) -> Result<Tensor> {
    //!         let x = self.norm.call(self.conv.call(x)).relu();
    //!         Ok(self.head.call(x.max_pool2d(2).flatten(1)))
    //!     }
    //! }
    //!
    //! let net = Net::new(10)?;
    //! let images = Tensor::rand([4, 1, 28, 28], DType::F32);
    //! let labels = Tensor::randint(0, 10, [4]);
    //! let loss = net.call(&images).cross_entropy(&labels);
    //! loss.backward()?;
    //! for (name, parameter) in net.named_parameters() {
    //!     assert!(parameter.grad().is_some(), "{name} has no gradient");
    //! }
    //! # Ok::<(), kiln::Error>(())
    //! ```

    /// [`kiln_nn::Module`] for this crate's users.
    pub use kiln_nn::KilnModule as Module;
    pub use kiln_nn::*;
}

pub mod package {
    //! Compiled functions with their weights and state in one file, and programs that run it with the runtime alone.
    //!
    //! ```
    //! use kiln::nn::{Forward, Linear};
    //! use kiln::package::{Buffer, Builder, Package};
    //! use kiln::{DType, Spec, compile};
    //!
    //! # let folder = std::env::temp_dir().join(format!("kiln-package-doc-{}", std::process::id()));
    //! # std::fs::create_dir_all(&folder).unwrap();
    //! # let path = folder.join("model.kiln");
    //! let model = Linear::new(3, 2)?;
    //! let forward = compile(Spec::new(DType::F32, ("batch", 3)), |x| model.call(&x).softmax(1))?;
    //! Builder::new().module("", &model).entry("forward", &forward).save(&path)?;
    //!
    //! // What follows needs the crate `kiln-package` alone.
    //! let package = Package::open(&path).unwrap();
    //! let x = Buffer::from_slice(&[1.0f32, 2.0, 3.0], &[1, 3]).unwrap();
    //! let out = package.entry("forward").unwrap().run(x).unwrap();
    //! assert_eq!(out[0].shape(), [1, 2]);
    //! # drop(package);
    //! # std::fs::remove_dir_all(&folder).unwrap();
    //! # Ok::<(), kiln::Error>(())
    //! ```

    pub use kiln_export::Builder;
    pub use kiln_package::*;
}

pub mod prelude {
    //! What most programs use, in one line: tensors, layers, optimisers, schedules, loaders.
    //!
    //! ```
    //! use kiln::prelude::*;
    //!
    //! let model = sequential![Linear::new(4, 8), ReLU::new(), Linear::new(8, 2)]?;
    //! let mut opt = Optimizer::new(model.parameters(), AdamW::new().lr(1e-2))?;
    //! let loss = model.call(randn([16, 4])).square().mean(());
    //! loss.backward()?;
    //! opt.step()?;
    //! # Ok::<(), kiln::Error>(())
    //! ```

    pub use crate::data::{DataLoader, TensorDataset};
    pub use crate::nn::optim::*;
    pub use crate::nn::*;
    pub use crate::*;
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../docs/pytorch.md")]
struct FromPyTorch;
