//! The serialisable program: what the compiler produces and the runtime runs.
//!
//! A [`Plan`] is data: buffers, kernels, and two lists of [`Step`]s. The *prepare* steps depend only on
//! parameters and run again only when one of those changes; the *run* steps run every time. Sizes
//! may be symbolic; binding the inputs' shapes gives every symbol a value.

mod algorithm;
mod depth;
mod dims;
mod fft;
mod measure;

use crate::cuda::CudaKernel;
use crate::prim::{ScanKind, ScatterKind};
use crate::tile::{Schedule, TileProgram};
use crate::{DType, Dim, Sym};
pub use algorithm::{Algorithm, UnknownAlgorithm};
pub use depth::MAX_DEPTH;
pub use fft::FftTile;
use serde::{Deserialize, Serialize};

/// A buffer of a plan.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BufferId(pub u32);

/// A program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The symbols that sizes use.
    pub symbols: Vec<Symbol>,
    /// What the caller gives, in order.
    pub inputs: Vec<Input>,
    /// What the caller gets, in order.
    pub outputs: Vec<Output>,
    /// Data baked into the plan.
    pub constants: Vec<Constant>,
    /// Every buffer.
    pub buffers: Vec<Buffer>,
    /// The kernels that steps call.
    pub kernels: Vec<Kernel>,
    /// Steps that depend on parameters only, in order.
    pub prepare: Vec<Step>,
    /// The other steps, in order.
    pub run: Vec<Step>,
    /// Index into `run`: the steps from here on write into donated inputs and run only if no step
    /// before them reported a data error.
    pub commit: u32,
    /// Places that can report a data error.
    pub sites: Vec<Site>,
}

/// A symbol and the input dim that gives it its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Symbol {
    /// A readable name, such as `batch`.
    pub name: String,
    /// The smallest legal value; at least 2.
    pub min: i64,
    /// Which input.
    pub input: u32,
    /// Which of its dims; that dim is exactly this symbol.
    pub axis: u32,
}

/// What an input is.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Data that differs from run to run.
    Data,
    /// A parameter: what depends only on these is computed once, in *prepare*.
    Parameter,
    /// An i64 pair (seed, offset) of random numbers.
    RandomKey,
}

/// An input: a contiguous row-major tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// Element type.
    pub dtype: DType,
    /// Shape; must match at every run once symbols have their values.
    pub shape: Vec<Dim>,
    /// What it is.
    pub role: Role,
    /// Its buffer.
    pub buffer: BufferId,
}

/// An output: a contiguous row-major tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Vec<Dim>,
    /// Its buffer.
    pub buffer: BufferId,
    /// The input whose memory it may take over where the caller gives that memory up. Every step
    /// that reads the input comes before the step that writes this output, or is that step and
    /// reads each element before writing it.
    pub donor: Option<u32>,
}

/// Data baked into a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Constant {
    /// Element type.
    pub dtype: DType,
    /// Little-endian elements.
    pub bytes: Vec<u8>,
    /// Its buffer.
    pub buffer: BufferId,
}

/// A buffer of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// Element type.
    pub dtype: DType,
    /// Number of elements.
    pub len: Dim,
    /// Where its memory comes from.
    pub place: Place,
}

/// Where a buffer's memory comes from.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Place {
    /// The caller.
    Input,
    /// A fresh allocation that outlives the run (or the donor's memory).
    Output,
    /// The plan.
    Constant,
    /// Results of *prepare*, kept as long as the parameters stay the same.
    Prepared,
    /// The arena.
    Temporary,
    /// The memory of another temporary buffer that dies where this one is written.
    InPlace(BufferId),
}

/// One kernel call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Index into [`Plan::kernels`].
    pub kernel: u32,
    /// The buffer of each kernel argument.
    pub args: Vec<BufferId>,
    /// The plan's site for each of the kernel's.
    pub sites: Vec<u32>,
    /// Whether it starts together with the step before it. Such steps are tile kernels that report no
    /// data error, and none touches what another writes.
    pub joined: bool,
}

/// A place that can report a data error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    /// The op, such as `gather`.
    pub op: String,
    /// What goes wrong there.
    pub kind: SiteKind,
    /// The graph node, by which the caller finds the user's source line.
    pub node: u32,
}

/// What goes wrong at a [`Site`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SiteKind {
    /// An index outside `0..bound`.
    IndexOutOfRange,
    /// An integer division by zero.
    DivisionByZero,
    /// The kernel of a custom op failed.
    Custom,
}

/// What a step runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Kernel {
    /// A fused group.
    Tile(TileProgram),
    /// A batched matrix product.
    MatMul(MatMul),
    /// A convolution.
    Conv(Conv),
    /// Running results along an axis.
    Scan(Scan),
    /// The order of the elements of lanes.
    ArgSort(ArgSort),
    /// Elements placed by index.
    Scatter(Scatter),
    /// A program run a number of times.
    Loop(Loop),
    /// One of two programs.
    If(If),
    /// A user's kernel.
    Custom(Custom),
    /// Any of these, for a GPU. A plan has either these alone or none.
    Cuda(CudaKernel),
    /// Attention. The CPU engine has no kernel for it and takes it apart.
    Attention(Box<Attention>),
}

impl Kernel {
    /// A readable name.
    pub fn name(&self) -> &str {
        match self {
            Kernel::Tile(p) => &p.name,
            Kernel::MatMul(_) | Kernel::Conv(_) => match (self.program(), self.programs().next()) {
                (Some(p), _) | (None, Some(p)) => &p.name,
                (None, None) => match self {
                    Kernel::Conv(c) => c.role.name(),
                    _ => "matmul",
                },
            },
            Kernel::Scan(_) => "scan",
            Kernel::ArgSort(_) => "arg_sort",
            Kernel::Scatter(_) => "scatter",
            Kernel::Loop(_) => "loop",
            Kernel::If(_) => "if",
            Kernel::Custom(c) => &c.name,
            Kernel::Cuda(k) => &k.name,
            Kernel::Attention(a) => a.epilogue.as_ref().map_or("attention", |e| &e.program.name),
        }
    }

    /// Its tile program, if it has one: a fused group's own, or an epilogue.
    pub fn program(&self) -> Option<&TileProgram> {
        match self {
            Kernel::Tile(p) => Some(p),
            Kernel::MatMul(MatMul { epilogue, .. }) | Kernel::Conv(Conv { epilogue, .. }) => {
                epilogue.as_ref().map(|e| &e.program)
            }
            Kernel::Attention(a) => a.epilogue.as_ref().map(|e| &e.program),
            _ => None,
        }
    }

    /// What makes its operands, one for each that it may be made for.
    pub fn prologues(&self) -> &[Option<Box<Prologue>>] {
        match self {
            Kernel::MatMul(m) => &m.prologues,
            Kernel::Conv(c) => std::slice::from_ref(&c.prologue),
            _ => &[],
        }
    }

    /// Its tile programs, in the order in which they run: those that make operands, then [`Kernel::program`].
    pub fn programs(&self) -> impl Iterator<Item = &TileProgram> {
        let made = self.prologues().iter().flatten().map(|p| &p.program);
        made.chain(self.program())
    }

    /// The programs that it runs.
    pub fn bodies(&self) -> &[Plan] {
        match self {
            Kernel::Loop(l) => std::slice::from_ref(&l.body),
            Kernel::If(i) => &i.branches[..],
            _ => &[],
        }
    }

    /// The programs that it runs, to change.
    pub fn bodies_mut(&mut self) -> &mut [Plan] {
        match self {
            Kernel::Loop(l) => std::slice::from_mut(&mut l.body),
            Kernel::If(i) => &mut i.branches[..],
            _ => &mut [],
        }
    }

    /// Whether steps of it can start together with others: it runs on the CPU, in parts, and can't report
    /// a data error.
    pub fn can_join(&self) -> bool {
        let parts = matches!(
            self,
            Kernel::Tile(_) | Kernel::MatMul(_) | Kernel::Conv(_) | Kernel::Attention(_)
        );
        parts && self.sites() == 0
    }

    /// How many places in it can report a data error.
    pub fn sites(&self) -> u32 {
        match self {
            Kernel::Scatter(_) | Kernel::Custom(_) => 1,
            Kernel::Cuda(k) => k.sites,
            Kernel::Loop(_) | Kernel::If(_) => {
                self.bodies().iter().map(|b| b.sites.len() as u32).sum()
            }
            other => other.program().map_or(0, |p| p.sites),
        }
    }
}

/// Work on the result of a matrix product or convolution while it is hot in the cache.
///
/// Its program is a [`Schedule::Lanes`] program without `inner` whose
/// linear iteration space is that of the product's row-major result (`[batch.., m, n]`, or
/// `[n, c, spatial..]`); or, of a matrix product, a [`Schedule::Rows`] program
/// whose axes are its rows and whose `inner` are the n elements of one. Its arguments are the step's, followed
/// by one more: the raw result, an array over that whole space of which only the part being worked on exists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Epilogue {
    /// The program; the raw result is its last argument.
    pub program: TileProgram,
}

impl Epilogue {
    /// Whether it works on whole rows of the result.
    pub fn over_rows(&self) -> bool {
        self.program.schedule == Schedule::Rows
    }
}

/// Pointwise work that makes an operand of a matrix product or convolution, a part at a time, so that it need not be in memory.
///
/// Its program is a [`Schedule::Lanes`] program without `inner` and data errors over the operand's row-major
/// linear space. Its arguments are the step's, followed by one more, which it writes: the operand, an array over
/// that whole space of which only the part being worked on exists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prologue {
    /// The program; the operand is its last argument.
    pub program: TileProgram,
}

/// The argument that an operand is, or those that it is made of.
fn read(prologue: &Option<Box<Prologue>>, arg: u16) -> Vec<u16> {
    let Some(Prologue { program }) = prologue.as_deref() else {
        return vec![arg];
    };
    let made = program.args.len() as u16 - 1;
    let read = program.accesses.iter().map(|a| a.arg);
    read.filter(|arg| *arg != made).collect()
}

/// A matrix operand: element (batch.., i, j) at `offset + Σ batch_strides · b + row·i + col·j`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Matrix {
    /// Which argument.
    pub arg: u16,
    /// In elements.
    pub offset: Dim,
    /// One stride a batch dim.
    pub batch_strides: Vec<Dim>,
    /// Stride of the first matrix index.
    pub row: Dim,
    /// Stride of the second matrix index.
    pub col: Dim,
}

/// `out[b, i, j] = Σ_k lhs[b, i, k] · rhs[b, k, j]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MatMul {
    /// f32 or f64.
    pub dtype: DType,
    /// Batch extents.
    pub batch: Vec<Dim>,
    /// Rows of the result.
    pub m: Dim,
    /// Length of the sums.
    pub k: Dim,
    /// Columns of the result.
    pub n: Dim,
    /// The left matrix.
    pub lhs: Matrix,
    /// The right matrix.
    pub rhs: Matrix,
    /// The contiguous result's argument; unused with an epilogue, which writes its own.
    pub out: u16,
    /// Work that makes the left and the right matrix, whose `arg` is then unused; the elements of its rows, or of
    /// its columns, lie side by side.
    pub prologues: [Option<Box<Prologue>>; 2],
    /// Work on the result.
    pub epilogue: Option<Epilogue>,
    /// How the CPU computes it.
    pub algorithm: Algorithm,
}

impl MatMul {
    /// The arguments that its matrices are, or are made of.
    pub fn operands(&self) -> Vec<u16> {
        let [left, right] = &self.prologues;
        let of = |p: &Option<_>, x: &Matrix| read(p, x.arg);
        [of(left, &self.lhs), of(right, &self.rhs)].concat()
    }
}

/// `out[b, i, c] = Σ_j weight[b, i, j] · value[b, j, c]`, where the weights of row i are the softmax over j of
/// `scale · Σ_x query[b, i, x] · key[b, j, x]` under the mask. f16 and bf16 compute in f32.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    /// Of the operands and the result: a float.
    pub dtype: DType,
    /// What scores are multiplied by.
    pub scale: f64,
    /// Whether row i sees keys 0 to i only. A row that sees none, here or by the mask, gives zeros.
    pub causal: bool,
    /// Batch extents.
    pub batch: Vec<Dim>,
    /// Rows of the query and of the result.
    pub length: Dim,
    /// Rows of the key and of the value.
    pub keys: Dim,
    /// Columns of the query and of the key.
    pub width: Dim,
    /// Columns of the value and of the result.
    pub columns: Dim,
    /// Rows that ask.
    pub query: Matrix,
    /// Rows that are asked.
    pub key: Matrix,
    /// What their weights are for.
    pub value: Matrix,
    /// A matrix of `length` rows and a column a key, and its dtype: bool (which keys take part) or
    /// `dtype` (added to the scores).
    pub mask: Option<(Matrix, DType)>,
    /// The contiguous result's argument; unused with an epilogue, which writes its own.
    pub out: u16,
    /// Work on the result.
    pub epilogue: Option<Epilogue>,
}

impl Attention {
    /// The arguments that it reads, and their dtypes.
    pub fn operands(&self) -> impl Iterator<Item = (u16, DType)> {
        let own = [&self.query, &self.key, &self.value].map(|m| (m.arg, self.dtype));
        let mask = self.mask.as_ref().map(|(m, dtype)| (m.arg, *dtype));
        own.into_iter().chain(mask)
    }
}

/// Which of the three tensors of a convolution y = x * w a kernel computes from the other two. Each
/// function is linear in both its operands, and the derivative of the others.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConvRole {
    /// y from x and w.
    Result,
    /// The gradient of x, from that of y and from w: a transposed convolution.
    Input,
    /// The gradient of w, from x and from that of y.
    Weight,
}

impl ConvRole {
    /// The name that kernels are called by.
    pub fn name(self) -> &'static str {
        match self {
            ConvRole::Result => "conv",
            ConvRole::Input => "conv_transpose",
            ConvRole::Weight => "conv_weight",
        }
    }
}

/// How the images of a convolution lie in memory.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Images {
    /// `[batch, channels, spatial..]`.
    #[default]
    ChannelsFirst,
    /// `[batch, spatial.., channels]`.
    ChannelsLast,
    /// x with channels first, y with channels last.
    Turned,
    /// x with channels last, y with channels first.
    Returned,
}

/// A convolution (cross-correlation) or one of its two gradients, over contiguous
/// x `[batch, groups · in, input..]`, w `[groups · out, in, kernel..]` and
/// y `[batch, groups · out, output..]`; x and y may lie in memory otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conv {
    /// f32 or f64; on a GPU f16 or bf16 too.
    pub dtype: DType,
    /// What is computed.
    pub role: ConvRole,
    /// Batch size.
    pub batch: Dim,
    /// Channel groups.
    pub groups: Dim,
    /// Input channels of a group.
    pub in_channels: Dim,
    /// Output channels of a group.
    pub out_channels: Dim,
    /// Input extents, one a spatial axis; the vectors below have the same length.
    pub input: Vec<Dim>,
    /// Output extents.
    pub output: Vec<Dim>,
    /// Filter extents.
    pub kernel: Vec<Dim>,
    /// Steps of the filter.
    pub stride: Vec<Dim>,
    /// Zeros in front of each axis.
    pub padding: Vec<Dim>,
    /// Steps within the filter.
    pub dilation: Vec<Dim>,
    /// The arguments of the operands, in the order in which the role names them.
    pub operands: [u16; 2],
    /// The contiguous result's argument; unused with an epilogue, which writes its own.
    pub out: u16,
    /// Work that makes x as it lies, for the result alone; its operand is then unused.
    pub prologue: Option<Box<Prologue>>,
    /// Work on the result.
    pub epilogue: Option<Epilogue>,
    /// How the CPU computes it.
    pub algorithm: Algorithm,
    /// How x and y lie in memory. On the CPU only results have channels last, and by one algorithm. On a GPU a w
    /// that is read then lies as `[groups · out, kernel.., in]`. An epilogue's linear space is that of what is
    /// written, as it lies.
    pub images: Images,
}

impl Images {
    /// Whether x and y have channels last.
    pub fn last(self) -> [bool; 2] {
        match self {
            Images::ChannelsFirst => [false, false],
            Images::ChannelsLast => [true, true],
            Images::Turned => [false, true],
            Images::Returned => [true, false],
        }
    }

    /// How they lie where x and y have channels last, or not.
    pub fn of(last: [bool; 2]) -> Images {
        match last {
            [false, false] => Images::ChannelsFirst,
            [true, true] => Images::ChannelsLast,
            [false, true] => Images::Turned,
            [true, false] => Images::Returned,
        }
    }
}

impl Conv {
    /// The arguments that its operands are, or are made of.
    pub fn operands(&self) -> Vec<u16> {
        [
            read(&self.prologue, self.operands[0]),
            vec![self.operands[1]],
        ]
        .concat()
    }
}

/// `out[o, i, j] = x[o, 0, j] ∘ … ∘ x[o, i, j]`, or from the end; all of one dtype. f16 and bf16
/// accumulate in f32. The result may lie in the operand's memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scan {
    /// Any that computes but bool.
    pub dtype: DType,
    /// How elements combine.
    pub kind: ScanKind,
    /// Whether the last element comes first.
    pub reverse: bool,
    /// Extent in front of the axis.
    pub outer: Dim,
    /// Extent of the axis.
    pub len: Dim,
    /// Extent behind the axis.
    pub inner: Dim,
    /// The argument of the contiguous operand.
    pub x: u16,
    /// The argument of the contiguous result.
    pub out: u16,
}

/// The i64 indices that sort each lane of contiguous `[lanes, len]`, stable, of which the first `kept`
/// are given. NaN is the largest, −0 is 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArgSort {
    /// Any that computes.
    pub dtype: DType,
    /// Whether the largest element comes first.
    pub descending: bool,
    /// Number of lanes.
    pub lanes: Dim,
    /// Elements of a lane.
    pub len: Dim,
    /// Indices given of a lane.
    pub kept: Dim,
    /// The argument of the operand.
    pub x: u16,
    /// The argument of the contiguous `[lanes, kept]`.
    pub out: u16,
}

/// A copy of x in which `x[.., index[.., i, ..], ..]` is combined with `src[.., i, ..]`, ascending in
/// i. An index outside the axis is a data error at the kernel's one site. The result may lie in the
/// memory of x.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scatter {
    /// Of x, the source and the result; any for [`ScatterKind::Set`], else one that computes, and
    /// for sums and products neither bool, f16 nor bf16.
    pub dtype: DType,
    /// How elements combine.
    pub kind: ScatterKind,
    /// The indexed axis.
    pub axis: u16,
    /// Extents of x and the result.
    pub shape: Vec<Dim>,
    /// Extents of the index and the source.
    pub index_shape: Vec<Dim>,
    /// The argument of contiguous x.
    pub x: u16,
    /// The index, i64.
    pub index: Strided,
    /// The source.
    pub src: Strided,
    /// The argument of the contiguous result.
    pub out: u16,
}

/// A program run for each step 0, 1, …, or from the last step to the first.
///
/// The body is a plan without symbols of its own (sizes use those of the plan around it), parameters,
/// *prepare* and donors. Its inputs are the rank-0 i64 number of the step, the carried values, one
/// slice of each scanned argument, and what all steps get alike. Its outputs are the next carried
/// values, then one slice of each stacked argument. The kernel's sites are the body's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loop {
    /// How many steps.
    pub trips: Dim,
    /// Whether the last step comes first.
    pub reverse: bool,
    /// The arguments of the first carried values.
    pub first: Vec<u16>,
    /// Those that are read slice by slice.
    pub scanned: Vec<u16>,
    /// Those that every step reads.
    pub alike: Vec<u16>,
    /// The arguments of the carried values after the last step.
    pub last: Vec<u16>,
    /// Those that are written slice by slice.
    pub stacked: Vec<u16>,
    /// One step.
    #[serde(deserialize_with = "depth::read")]
    pub body: Box<Plan>,
}

/// One of two programs, which are plans as in [`Loop`]. The kernel's sites are those of the first,
/// then those of the second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct If {
    /// The argument of one bool.
    pub condition: u16,
    /// The arguments of the inputs of both.
    pub inputs: Vec<u16>,
    /// The arguments of the outputs of both.
    pub outputs: Vec<u16>,
    /// Where the condition is true, and where it is not.
    #[serde(deserialize_with = "depth::read")]
    pub branches: Box<[Plan; 2]>,
}

/// A call of a registered operator; see [`crate::custom`]. Its failure is reported at the kernel's one
/// site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Custom {
    /// The name that it is registered under.
    pub name: String,
    /// The name of the kernel, where it is another than the operator's own.
    pub kernel: Option<String>,
    /// The operands, in order.
    pub operands: Vec<Array>,
    /// The result.
    pub out: Array,
}

/// A contiguous row-major tensor in an argument.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Array {
    /// Which argument.
    pub arg: u16,
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Vec<Dim>,
}

/// An operand whose element i is at `offset + Σ strides · i`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strided {
    /// Which argument.
    pub arg: u16,
    /// In elements.
    pub offset: Dim,
    /// One an axis.
    pub strides: Vec<Dim>,
}

/// Why bytes are not a plan of this version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are something else.
    #[error("not a Kiln plan (it does not begin with the plan header)")]
    NotAPlan,
    /// Written by another version.
    #[error(
        "the plan was written in format {found}, this build reads format {}",
        FORMAT
    )]
    Version {
        /// The format of the bytes.
        found: u32,
    },
    /// Cut off or changed.
    #[error("the plan is damaged: {0}")]
    Damaged(String),
}

const MAGIC: &[u8; 8] = b"kilnplan";
/// The format that [`Plan::to_bytes`] writes.
pub const FORMAT: u32 = 12;

impl Plan {
    /// The plan as bytes: a header with format and checksum, then the contents.
    pub fn to_bytes(&self) -> Vec<u8> {
        let body =
            postcard::to_allocvec(self).expect("plans hold only plain data, which always encodes");
        let mut bytes = Vec::with_capacity(body.len() + 20);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&checksum(&body).to_le_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }

    /// Reads what [`Plan::to_bytes`] wrote.
    ///
    /// # Errors
    /// If the bytes are not a plan, are of another format, or are damaged.
    pub fn from_bytes(bytes: &[u8]) -> Result<Plan, DecodeError> {
        let header = bytes.get(..20).filter(|h| &h[..8] == MAGIC);
        let header = header.ok_or(DecodeError::NotAPlan)?;
        let word = |at: usize, n: usize| {
            header[at..at + n]
                .iter()
                .rev()
                .fold(0u64, |a, b| a << 8 | *b as u64)
        };
        let found = word(8, 4) as u32;
        if found != FORMAT {
            return Err(DecodeError::Version { found });
        }
        let body = &bytes[20..];
        if checksum(body) != word(12, 8) {
            return Err(DecodeError::Damaged("its checksum does not match".into()));
        }
        postcard::from_bytes(body).map_err(|e| DecodeError::Damaged(e.to_string()))
    }

    /// The bytes of a buffer under a binding.
    pub fn buffer_bytes(&self, id: BufferId, values: &[i64]) -> usize {
        let b = &self.buffers[id.0 as usize];
        b.len.eval(values) as usize * b.dtype.size()
    }

    /// The dim of the symbol at `index`.
    pub fn symbol(index: usize) -> Dim {
        Dim::symbol(Sym(index as u32))
    }
}

/// FNV-1a, 64 bit: guards against truncation and bit rot.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ *b as u64).wrapping_mul(0x0100_0000_01b3)
    })
}
