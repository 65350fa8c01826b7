//! Layers, initialisers, optimisers and schedules, under PyTorch's names.
//!
//! A model is a struct whose fields are layers. [`Module`] is derived for it, or [`module!`] writes it with its
//! constructor. [`Forward`] defines its computation, and [`Forward::call`] calls it. A layer's constructor takes the
//! arguments that have no default in PyTorch: `Linear::new(64, 10)?`. PyTorch's keyword arguments are a struct:
//! `Conv2d::new(3, 16, Kernel::new(3).padding(1).bias(false))?`, or `LayerNorm::with(64, Norm::new().eps(1e-6))?`
//! besides required arguments. New parameters hold PyTorch's initial distributions.

extern crate self as kiln_nn;

pub mod amp;
pub mod init;
pub mod optim;

mod activation;
mod adaptive_softmax;
mod attention;
mod averaged_model;
mod cast;
mod checkpoint;
mod container;
mod conv;
mod copy;
mod described;
mod distance;
mod dropout;
mod dynamic;
mod embedding;
mod extract;
mod field;
mod forward;
mod fractional_pool;
mod functional_call;
mod hooks;
mod layer;
mod lazy;
mod linear;
mod load_report;
mod loss;
mod members;
mod mode;
mod module;
mod norm;
mod norms;
mod padding;
mod parametrize;
mod parametrized;
mod pointer;
mod pool;
mod print;
mod resample;
mod rnn;
mod running_norm;
mod seq2seq;
mod sequential;
mod shape;
mod state_dict;
mod transformer;
mod tree;
mod unpool;
mod vector;

/// The folder of this crate's source.
pub(crate) const SOURCE: &str = {
    let this = file!();
    this.split_at(this.len() - "lib.rs".len()).0
};

pub use activation::{
    CELU, ELU, GELU, GLU, Hardshrink, Hardsigmoid, Hardswish, Hardtanh, LeakyReLU,
    LocalResponseNorm, LogSigmoid, LogSoftmax, Mish, PReLU, RReLU, ReLU, ReLU6, SELU, SiLU,
    Sigmoid, Softmax, Softmax2d, Softmin, Softplus, Softshrink, Softsign, Tanh, Tanhshrink,
    Threshold,
};
pub use adaptive_softmax::{AdaptiveLogSoftmaxWithLoss, Cutoffs};
pub use attention::{AttentionMasks, AttentionOptions, MultiheadAttention};
pub use averaged_model::{AveragedModel, get_ema_avg_fn, get_swa_avg_fn};
pub use checkpoint::{Checkpoint, Restore};
pub use container::{ModuleDict, ModuleList, ParameterDict, ParameterList};
pub use conv::{
    Conv1d, Conv2d, Conv3d, ConvNd, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d,
    ConvTransposeNd, Kernel, TransposedKernel,
};
pub use copy::{BoxCopy, Copies};
pub use described::IntoField;
pub use distance::{CosineSimilarity, PairwiseDistance};
pub use dropout::{AlphaDropout, Dropout, Dropout1d, Dropout2d, Dropout3d, FeatureAlphaDropout};
pub use embedding::{Embedding, EmbeddingBag, Rows};
pub use extract::extract;
pub use field::Field;
pub use forward::{BoxForward, Forward, Output};
pub use fractional_pool::{FractionalMaxPool2d, FractionalMaxPool3d};
pub use functional_call::{FunctionalCall, functional_call, functional_call_with};
pub use hooks::{Hookable, Replace};
pub use kiln_derive::{KilnModule, Module};
pub use kiln_formats::StateDict;
pub use kiln_tensor::{HookHandle, Result};
pub use lazy::{
    Lazy, LazyBatchNorm1d, LazyBatchNorm2d, LazyBatchNorm3d, LazyConv1d, LazyConv2d, LazyConv3d,
    LazyConvTranspose1d, LazyConvTranspose2d, LazyConvTranspose3d, LazyInstanceNorm1d,
    LazyInstanceNorm2d, LazyInstanceNorm3d, LazyLinear,
};
pub use linear::{Bilinear, Identity, Linear, LinearOptions};
pub use load_report::LoadReport;
pub use loss::{
    BCELoss, BCEWithLogitsLoss, CTCLoss, CosineEmbeddingLoss, CrossEntropyLoss, GaussianNLLLoss,
    HingeEmbeddingLoss, HuberLoss, KLDivLoss, L1Loss, MSELoss, MarginRankingLoss,
    MultiLabelMarginLoss, MultiLabelSoftMarginLoss, MultiMarginLoss, NLLLoss, PoissonNLLLoss,
    SmoothL1Loss, SoftMarginLoss, TripletMarginLoss,
};
pub use members::{Hooks, Member, Members};
pub use mode::Mode;
pub use module::{BoxModule, Module};
pub use norm::{GroupNorm, LayerNorm, Norm, RMSNorm};
pub use norms::{is_batch_norm, is_norm};
pub use padding::{
    CircularPad1d, CircularPad2d, CircularPad3d, ConstantPad1d, ConstantPad2d, ConstantPad3d,
    ReflectionPad1d, ReflectionPad2d, ReflectionPad3d, ReplicationPad1d, ReplicationPad2d,
    ReplicationPad3d, ZeroPad1d, ZeroPad2d, ZeroPad3d,
};
pub use parametrize::{
    IntoModule, Parametrization, SpectralNorm, WeightNorm, is_parametrized,
    register_parametrization, remove_parametrizations, spectral_norm, weight_norm,
};
#[doc(hidden)]
pub use parametrized::Parametrized;
pub use pool::{
    AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d, AdaptiveMaxPool1d, AdaptiveMaxPool2d,
    AdaptiveMaxPool3d, AvgPool1d, AvgPool2d, AvgPool3d, MaxPool1d, MaxPool2d, MaxPool3d,
};
pub use resample::{ChannelShuffle, Fold, PixelShuffle, PixelUnshuffle, Upsample};
pub use rnn::{
    GRU, GRUCell, LSTM, LSTMCell, PackPaddedSequence, PackedSequence, RNN, RNNCell, Recurrent,
    RecurrentCell, pack_padded_sequence, pack_padded_sequence_with, pack_sequence,
    pad_packed_sequence, pad_packed_sequence_with, unpack_sequence, unpad_sequence,
};
pub use running_norm::{
    BatchNorm, BatchNorm1d, BatchNorm2d, BatchNorm3d, BatchNormNd, InstanceNorm, InstanceNorm1d,
    InstanceNorm2d, InstanceNorm3d, InstanceNormNd, update_bn,
};
pub use seq2seq::Transformer;
pub use sequential::{IntoLayer, Lambda, Sequential};
pub use shape::{Flatten, Unflatten, Unfold};

pub use transformer::{
    TransformerActivation, TransformerDecoder, TransformerDecoderLayer, TransformerEncoder,
    TransformerEncoderLayer, TransformerOptions,
};
pub use unpool::{LPPool1d, LPPool2d, LPPool3d, MaxUnpool1d, MaxUnpool2d, MaxUnpool3d, PowerPool};

pub use vector::{parameters_to_vector, vector_to_parameters};

#[doc(hidden)]
pub mod derive {
    //! The items that the derive's code uses.
    pub use crate::copy::{Skipped, SkippedClone, SkippedOther};
}
