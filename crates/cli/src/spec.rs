//! The subject of a measurement, as text: `matmul:512x512x512`, `conv2d:8x64x56x56:64x3x3:p1`, `softmax:4096x4096`,
//! `resnet50`.
//!
//! Sizes stand in the order of the op's shape, with `x` between them. A size may be a list (`64,128`) or a range that
//! doubles (`64..1024`); then the text stands for every combination.

use kiln_models::workloads;
use std::fmt;
use std::str::FromStr;

/// A workload to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workload {
    /// `[batch.., m, k] · [batch.., k, n]`, sizes `batch.. m k n`.
    MatMul(Vec<usize>),
    /// A convolution.
    Conv(Conv),
    /// An op of one tensor of this shape.
    Unary(Unary, Vec<usize>),
    /// Scaled dot-product attention: batch, heads, length, width of a head.
    Attention([usize; 4]),
    /// A network or training step of [`workloads`].
    Model(&'static str),
}

/// A convolution over one to three axes, of `[batch, channels, spatial..]` by `[out, channels / groups, kernel..]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conv {
    /// True if the gradients of input and weight are computed, instead of the result.
    pub gradients: bool,
    /// Batch, channels and spatial sizes of the input.
    pub input: Vec<usize>,
    /// Output channels and sizes of the kernel, one fewer than of the input.
    pub weight: Vec<usize>,
    /// The stride of the kernel.
    pub stride: usize,
    /// The number of zeros at every border.
    pub padding: usize,
    /// The number of channel groups.
    pub groups: usize,
}

macro_rules! unary {
    ($($variant:ident = $name:literal, $about:literal, $rank:literal;)*) => {
        /// An op of one tensor.
        #[derive(Copy, Clone, Debug, PartialEq, Eq)]
        pub enum Unary {
            $(#[doc = $about] $variant,)*
        }

        impl Unary {
            /// All of them, with their descriptions.
            pub const ALL: &[(Unary, &str)] = &[$((Unary::$variant, $about)),*];

            /// Its name in a text.
            pub fn name(self) -> &'static str {
                match self { $(Unary::$variant => $name),* }
            }

            /// The minimum number of sizes in its shape.
            fn rank(self) -> usize {
                match self { $(Unary::$variant => $rank),* }
            }
        }
    };
}

unary! {
    Copy = "copy", "negation: one read and one write", 1;
    Add = "add", "the sum of two tensors", 1;
    Gelu = "gelu", "gelu(x * a + b) * c, of four tensors", 1;
    Sum = "sum", "sums of rows", 2;
    ColumnSum = "column_sum", "sums of columns", 2;
    Softmax = "softmax", "softmax of rows", 2;
    LayerNorm = "layer_norm", "layer norm of rows", 2;
    BatchNorm = "batch_norm", "batch norm in training, and ReLU; shape batch, channels, size..", 3;
    MaxPool = "max_pool2d", "maxima of 3x3, in steps of 2; shape batch, channels, height, width", 4;
    Gather = "gather", "as many rows, picked at random", 2;
    Sort = "sort", "rows in ascending order", 2;
    Cumsum = "cumsum", "running sums of rows", 2;
}

/// The reason why a text is not a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError(String);

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SpecError {}

/// Every workload that a text stands for: a group (`@pointwise`), a model, or an op with its sizes.
///
/// # Errors
/// If it stands for none, or for more than 10,000.
pub fn parse(text: &str) -> Result<Vec<Workload>, SpecError> {
    if let Some(name) = text.strip_prefix('@') {
        let group = crate::groups::GROUPS.iter().find(|g| g.0 == name);
        let (.., members) = group.ok_or_else(|| unknown("group", name, crate::groups::names()))?;
        let workloads = members.iter().map(|m| parse(m));
        return Ok(workloads.collect::<Result<Vec<_>, _>>()?.concat());
    }
    let mut texts = vec![String::new()];
    let mut is_first = true;
    for field in text.split(':') {
        // Names have no lists; options (`s2`) begin with a letter.
        let size_choices = sizes(field)?;
        let mut longer = Vec::new();
        for text in &texts {
            for choice in &size_choices {
                let colon = if is_first { "" } else { ":" };
                longer.push(format!("{text}{colon}{choice}"));
            }
        }
        is_first = false;
        texts = longer;
        if texts.len() > 10_000 {
            return Err(SpecError(format!(
                "{text} stands for more than 10,000 workloads"
            )));
        }
    }
    texts.iter().map(|t| t.parse()).collect()
}

/// The combinations of a part's sizes.
fn sizes(part: &str) -> Result<Vec<String>, SpecError> {
    if !part.starts_with(|c: char| c.is_ascii_digit()) {
        return Ok(vec![part.to_string()]);
    }
    let mut combinations = vec![String::new()];
    for (i, size) in part.split('x').enumerate() {
        let mut choices = Vec::new();
        for choice in size.split(',') {
            match choice.split_once("..") {
                None => choices.push(number(choice)?),
                Some((from, to)) => {
                    let (from, to) = (number(from)?, number(to)?);
                    let from = from.max(1);
                    if from > to {
                        return Err(SpecError(format!("there is no size from {from} to {to}")));
                    }
                    let doubled = std::iter::successors(Some(from), |n| n.checked_mul(2));
                    choices.extend(doubled.take_while(|n| *n <= to));
                }
            }
        }
        let cross = if i == 0 { "" } else { "x" };
        let longer = combinations
            .iter()
            .flat_map(|a| choices.iter().map(move |c| format!("{a}{cross}{c}")));
        combinations = longer.collect();
        if combinations.len() > 10_000 {
            return Err(SpecError(format!(
                "{part} stands for more than 10,000 shapes"
            )));
        }
    }
    Ok(combinations)
}

fn number(text: &str) -> Result<usize, SpecError> {
    let n = text.parse();
    n.map_err(|_| {
        SpecError(format!(
            "{text:?} is not a size: sizes look like 64, 64,128 or 64..1024"
        ))
    })
}

fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> SpecError {
    let known: Vec<&str> = known.collect();
    SpecError(format!(
        "there is no {what} {name:?}; there are {}",
        known.join(", ")
    ))
}

fn list(text: &str) -> Result<Vec<usize>, SpecError> {
    text.split('x').map(number).collect()
}

/// Convolutions by the number of their axes, and their gradients.
const CONVS: [[&str; 2]; 3] = [
    ["conv1d", "conv1d_grad"],
    ["conv2d", "conv2d_grad"],
    ["conv3d", "conv3d_grad"],
];

/// The number of axes of a convolution's name, and true if it stands for the gradients.
fn conv_axes(name: &str) -> Option<(usize, bool)> {
    let axes = CONVS.iter().position(|names| names.contains(&name))?;
    Some((axes + 1, CONVS[axes][1] == name))
}

fn exactly<const N: usize>(text: &str, what: &str) -> Result<[usize; N], SpecError> {
    let sizes = list(text)?;
    let count = sizes.len();
    sizes
        .try_into()
        .map_err(|_| SpecError(format!("{what} takes {N} sizes, not {count}: {text}")))
}

impl FromStr for Workload {
    type Err = SpecError;

    /// Reads one workload; [`parse`] also takes lists and groups.
    fn from_str(text: &str) -> Result<Workload, SpecError> {
        let mut fields = text.split(':');
        let name = fields.next().unwrap_or_default();
        if let Some((model, _)) = workloads::names().find(|m| m.0 == name) {
            return match fields.next() {
                None => Ok(Workload::Model(model)),
                Some(more) => Err(SpecError(format!("{model} takes no sizes: {more}"))),
            };
        }
        let shape = fields
            .next()
            .ok_or_else(|| match ops().any(|o| o == name) {
                true => SpecError(format!(
                    "{name} needs sizes, as in {name}:{}",
                    example(name)
                )),
                false => unknown(
                    "op or model",
                    name,
                    ops().chain(workloads::names().map(|m| m.0)),
                ),
            })?;
        let workload = match name {
            "matmul" => {
                let sizes = list(shape)?;
                if sizes.len() < 3 {
                    return Err(SpecError(format!(
                        "matmul takes [batch x] m x k x n: {shape}"
                    )));
                }
                Workload::MatMul(sizes)
            }
            _ if conv_axes(name).is_some() => return conv(name, shape, fields).map(Workload::Conv),
            "attention" => Workload::Attention(exactly(shape, "attention")?),
            _ => {
                let unary = Unary::ALL.iter().find(|u| u.0.name() == name);
                let (op, about) = unary.ok_or_else(|| unknown("op", name, ops()))?;
                let sizes = list(shape)?;
                if sizes.len() < op.rank() {
                    let min_rank = op.rank();
                    let text = format!("{name} ({about}) takes {min_rank} sizes or more: {shape}");
                    return Err(SpecError(text));
                }
                Workload::Unary(*op, sizes)
            }
        };
        match fields.next() {
            None => Ok(workload),
            Some(more) => Err(SpecError(format!("{name} takes no {more:?}"))),
        }
    }
}

fn conv<'a>(
    name: &str,
    input: &str,
    mut fields: impl Iterator<Item = &'a str>,
) -> Result<Conv, SpecError> {
    let (axes, gradients) = conv_axes(name).unwrap_or((2, false));
    let weight = fields.next().ok_or_else(|| {
        let kernel = vec!["3"; axes].join("x");
        let text = format!("{name} needs its weight's sizes, as in {name}:{input}:64x{kernel}");
        SpecError(text)
    })?;
    let sizes = |text: &str, operand: &str, count: usize| match list(text)? {
        sizes if sizes.len() == count => Ok(sizes),
        sizes => Err(SpecError(format!(
            "the {operand} of {name} takes {count} sizes, not {}: {text}",
            sizes.len()
        ))),
    };
    let mut conv = Conv {
        gradients,
        input: sizes(input, "input", axes + 2)?,
        weight: sizes(weight, "weight", axes + 1)?,
        stride: 1,
        padding: 0,
        groups: 1,
    };
    for option in fields {
        let split = option.split_at_checked(1).unwrap_or_default();
        match split {
            ("s", n) => conv.stride = number(n)?,
            ("p", n) => conv.padding = number(n)?,
            ("g", n) => conv.groups = number(n)?,
            _ => {
                let text =
                    format!("{name} takes s2 (stride), p1 (padding), g32 (groups), not {option:?}");
                return Err(SpecError(text));
            }
        }
    }
    Ok(conv)
}

/// The names of all ops.
pub fn ops() -> impl Iterator<Item = &'static str> {
    (["matmul", "attention"].into_iter())
        .chain(CONVS.into_iter().flatten())
        .chain(Unary::ALL.iter().map(|u| u.0.name()))
}

/// The description of an op.
pub fn about(op: &str) -> &'static str {
    match op {
        "matmul" => "a product of matrices, sizes [batch x] m x k x n",
        "conv1d" => "a convolution over one axis, input:weight[:sSTRIDE][:pPADDING][:gGROUPS]",
        "conv2d" => "a convolution over two axes",
        "conv3d" => "a convolution over three axes",
        _ if conv_axes(op).is_some() => "its gradients, of input and weight",
        "attention" => "attention, sizes batch x heads x length x width",
        _ => {
            let unary = Unary::ALL.iter().find(|u| u.0.name() == op);
            unary.map_or("", |u| u.1)
        }
    }
}

/// Example sizes of an op.
pub fn example(op: &str) -> &'static str {
    match op {
        "matmul" => "512x512x512",
        "conv1d" | "conv1d_grad" => "8x64x1024:64x3:p1",
        "conv2d" | "conv2d_grad" => "1x64x56x56:64x3x3:p1",
        "conv3d" | "conv3d_grad" => "1x16x16x28x28:32x3x3x3:p1",
        "max_pool2d" => "8x64x112x112",
        "attention" => "1x12x256x64",
        "batch_norm" => "32x64x56x56",
        "copy" | "add" | "gelu" => "16777216",
        _ => "4096x4096",
    }
}

/// Sizes with `x` between them.
fn sizes_text(sizes: &[usize]) -> String {
    let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
    sizes.join("x")
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Workload::MatMul(sizes) => write!(f, "matmul:{}", sizes_text(sizes)),
            Workload::Unary(op, sizes) => write!(f, "{}:{}", op.name(), sizes_text(sizes)),
            Workload::Attention(sizes) => write!(f, "attention:{}", sizes_text(sizes)),
            Workload::Model(name) => f.write_str(name),
            Workload::Conv(c) => {
                let names = CONVS[(c.weight.len().max(2) - 2).min(2)];
                write!(
                    f,
                    "{}:{}:{}",
                    names[usize::from(c.gradients)],
                    sizes_text(&c.input),
                    sizes_text(&c.weight)
                )?;
                for (letter, n, usual) in
                    [('s', c.stride, 1), ('p', c.padding, 0), ('g', c.groups, 1)]
                {
                    if n != usual {
                        write!(f, ":{letter}{n}")?;
                    }
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_back() {
        for text in [
            "matmul:2x3x5x7",
            "conv2d:1x64x56x56:64x3x3:s2:p1:g32",
            "conv2d:1x3x8x8:4x1x1",
            "conv2d_grad:1x3x8x8:4x1x1:s2",
            "conv1d:2x3x8:4x5:p2",
            "conv1d_grad:2x3x8:4x5",
            "conv3d:1x3x4x5x6:4x1x2x3:s2",
            "conv3d_grad:1x3x4x5x6:4x1x2x3",
            "softmax:3x5",
            "attention:1x2x3x4",
            "resnet50",
        ] {
            assert_eq!(
                text.parse::<Workload>().map(|w| w.to_string()),
                Ok(text.to_string())
            );
        }
    }

    #[test]
    fn lists_and_ranges_are_all_combinations() {
        let all = parse("matmul:1,8x64..256x5").expect("a sweep");
        let texts: Vec<String> = all.iter().map(Workload::to_string).collect();
        let expected = [
            "1x64x5", "1x128x5", "1x256x5", "8x64x5", "8x128x5", "8x256x5",
        ];
        assert_eq!(texts, expected.map(|s| format!("matmul:{s}")));
    }

    #[test]
    fn every_group_op_and_model_can_be_named() {
        for (name, ..) in crate::groups::GROUPS {
            assert!(!parse(&format!("@{name}")).expect(name).is_empty());
        }
        for op in ops() {
            assert_eq!(
                parse(&format!("{op}:{}", example(op))).map(|w| w.len()),
                Ok(1),
                "{op}"
            );
        }
    }

    #[test]
    fn what_is_no_workload_is_told_why() {
        for (text, why) in [
            ("matmull:1x2x3", "there is no op"),
            ("matmul", "needs sizes"),
            ("matmul:1x2", "takes [batch x] m x k x n"),
            ("matmul:1x2xa", "is not a size"),
            ("softmax:8", "takes 2 sizes or more"),
            ("softmax:8x8:p1", "takes no \"p1\""),
            ("conv2d:1x3x8x8", "needs its weight's sizes"),
            ("conv2d:1x3x8:4x1x1", "takes 4 sizes, not 3"),
            (
                "conv1d:1x3x8:4x1x1",
                "the weight of conv1d takes 2 sizes, not 3",
            ),
            (
                "conv3d:1x3x8x8:4x1x1",
                "the input of conv3d takes 5 sizes, not 4",
            ),
            ("conv2d:1x3x8x8:4x1x1:q3", "conv2d takes s2"),
            ("resnet50:3", "takes no sizes"),
            ("@nothing", "there is no group"),
            (
                "copy:1..9999999x1..9999999x1..9999999x1..99999999",
                "more than 10,000",
            ),
            ("", "there is no op or model"),
            ("matmul:99999999999999999999x1x1", "is not a size"),
            ("matmul:512..64x8x8", "no size from 512 to 64"),
            ("copy:0..0", "no size from"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
