//! Convolutions and their gradients.

use super::{match_up, sums};
use crate::contract::{Contract, Contradiction, Described, Draft, contradiction};
use crate::dims::dims;
use crate::tile::TileProgram;
use crate::{Decision, Epilogue, Footprint, Prologue};
use kiln_base::{DType, Dim};
use serde::{Deserialize, Serialize};

/// The tensor of a convolution y = x * w that a kernel computes from the other two. Each function is linear in both its
/// operands, and is a derivative of the others.
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
    /// Returns the name that kernels are called by.
    pub fn name(self) -> &'static str {
        match self {
            ConvRole::Result => "conv",
            ConvRole::Input => "conv_transpose",
            ConvRole::Weight => "conv_weight",
        }
    }
}

/// The memory layout of the images of a convolution.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Images {
    /// `[batch, channels, spatial..]`.
    #[default]
    ChannelsFirst,
    /// `[batch, spatial.., channels]`.
    ChannelsLast,
    /// x with channels first, y with channels last.
    ToChannelsLast,
    /// x with channels last, y with channels first.
    ToChannelsFirst,
}

impl Images {
    /// For x and y, true if they have channels last.
    pub fn last(self) -> [bool; 2] {
        match self {
            Images::ChannelsFirst => [false, false],
            Images::ChannelsLast => [true, true],
            Images::ToChannelsLast => [false, true],
            Images::ToChannelsFirst => [true, false],
        }
    }

    /// Returns the layout in which x and y have channels last, or not.
    pub fn of(last: [bool; 2]) -> Images {
        match last {
            [false, false] => Images::ChannelsFirst,
            [true, true] => Images::ChannelsLast,
            [false, true] => Images::ToChannelsLast,
            [true, false] => Images::ToChannelsFirst,
        }
    }
}

/// A convolution (cross-correlation) or one of its two gradients, over contiguous x `[batch, groups · in, input..]`, w
/// `[groups · out, in, kernel..]` and y `[batch, groups · out, output..]`; x and y may have another memory layout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conv {
    /// The dtypes of the operands: f32, f64, i32 or i64, or dtypes that are summed in f32 (f16 and bf16) or in i32 (u8,
    /// i8 and i16). Both are the same, with two exceptions: signed bytes may meet unsigned ones, and f32 weights f16 or
    /// bf16 images.
    pub dtypes: [DType; 2],
    /// True if no byte of the first operand is above 127: the sum of two products then fits 16 bits.
    pub reduce_range: bool,
    /// The role of the result.
    pub role: ConvRole,
    /// The batch size.
    pub batch: Dim,
    /// The number of channel groups.
    pub groups: Dim,
    /// The number of input channels of a group.
    pub in_channels: Dim,
    /// The number of output channels of a group.
    pub out_channels: Dim,
    /// The input extents, one per spatial axis; the vectors below have the same length.
    pub input: Vec<Dim>,
    /// The output extents.
    pub output: Vec<Dim>,
    /// The filter extents.
    pub kernel: Vec<Dim>,
    /// The steps of the filter.
    pub stride: Vec<Dim>,
    /// The zeros before each axis.
    pub padding: Vec<Dim>,
    /// The steps within the filter.
    pub dilation: Vec<Dim>,
    /// The arguments of the operands, in the order in which the role's description names them.
    pub operands: [u16; 2],
    /// The contiguous result's argument; unused with an epilogue, which writes the result.
    pub out: u16,
    /// The prologue that computes x in its layout, for the result, or in f16 and bf16 also for the gradient of the
    /// weights. Its operand is then unused.
    pub prologue: Option<Box<Prologue>>,
    /// The epilogue.
    pub epilogue: Option<Epilogue>,
    /// The algorithm on the CPU.
    pub algorithm: Decision,
    /// The memory layout of x and y. If the image that is read has channels last on a GPU, a w that is read is stored as
    /// `[groups · out, kernel.., in]`. An epilogue's linear space is that of the written array, in its layout.
    pub images: Images,
}

dims!(
    Conv: batch, groups, in_channels, out_channels, input, output, kernel, stride, padding, dilation, prologue, epilogue, algorithm;
    dtypes, reduce_range, role, operands, out, images
);

impl Conv {
    /// Returns the dtype of its first operand.
    pub fn dtype(&self) -> DType {
        self.dtypes[0]
    }

    /// Returns the dtype of its sums.
    pub fn sums(&self) -> DType {
        sums(self.dtype())
    }

    /// True if its first operand is f16 or bf16.
    pub fn is_half(&self) -> bool {
        self.dtype().is_half()
    }

    /// True if its first operand has fewer bits than its sums.
    pub fn is_narrow(&self) -> bool {
        self.sums() != self.dtype()
    }

    /// True if its weights are f32, and its images f16 or bf16.
    fn has_wide_weights(&self) -> bool {
        self.is_half() && self.dtypes[1] == DType::F32 && self.role != ConvRole::Weight
    }

    /// Returns the operands that are images.
    pub fn image_operands(&self) -> &'static [usize] {
        match self.role {
            ConvRole::Weight => &[0, 1],
            _ => &[0],
        }
    }

    /// True if the first operand has channels last.
    pub fn reads_channels_last(&self) -> bool {
        let [x, y] = self.images.last();
        match self.role {
            ConvRole::Input => y,
            _ => x,
        }
    }

    /// True if the result has channels last.
    pub fn writes_channels_last(&self) -> bool {
        let [x, y] = self.images.last();
        match self.role {
            ConvRole::Result => y,
            ConvRole::Input => x,
            ConvRole::Weight => false,
        }
    }
}

impl Described for Conv {
    fn name(&self) -> &str {
        let program = self.prologue.as_ref().map(|p| &p.program);
        (self.program().or(program)).map_or(self.role.name(), |p| &p.name)
    }

    fn contract(&self) -> Result<Contract, Contradiction> {
        let mut draft = Draft::new(self.name());
        if !match_up(self.dtypes) && !self.has_wide_weights() {
            let [a, b] = self.dtypes;
            return Err(contradiction!("{} multiplies {a} and {b}", self.name()));
        }
        draft.result(self.out, self.sums(), &self.epilogue)?;
        draft.operand(self.operands[0], self.dtypes[0], &self.prologue)?;
        draft.operand(self.operands[1], self.dtypes[1], &None)?;
        draft.finish_reading_back(self.program().map_or(0, |p| p.sites))
    }

    fn results(&self) -> Option<Vec<&Dim>> {
        let (extents, channels) = match self.role {
            ConvRole::Result => (
                &self.output,
                [&self.batch, &self.groups, &self.out_channels],
            ),
            ConvRole::Input => (&self.input, [&self.batch, &self.groups, &self.in_channels]),
            ConvRole::Weight => (
                &self.kernel,
                [&self.groups, &self.out_channels, &self.in_channels],
            ),
        };
        Some(extents.iter().chain(channels).collect())
    }

    fn footprints(&self) -> Vec<Footprint> {
        let channels = [&self.groups, &self.in_channels, &self.out_channels];
        let [groups, ins, outs] = channels;
        let x = self.input.iter().chain([&self.batch, groups, ins]);
        let y = self.output.iter().chain([&self.batch, groups, outs]);
        let w = self.kernel.iter().chain([groups, ins, outs]);
        let [x, w, y]: [Vec<&Dim>; 3] = [x.collect(), w.collect(), y.collect()];
        let [first, second, out] = match self.role {
            ConvRole::Result => [x, w, y],
            ConvRole::Input => [y, w, x],
            ConvRole::Weight => [x, y, w],
        };
        let mut footprints = vec![Footprint::whole(self.operands[1], second)];
        if self.prologue.is_none() {
            footprints.push(Footprint::whole(self.operands[0], first));
        }
        if self.epilogue.is_none() {
            footprints.push(Footprint::whole(self.out, out));
        }
        footprints
    }

    fn in_parts(&self) -> bool {
        true
    }

    fn prologues(&self) -> &[Option<Box<Prologue>>] {
        std::slice::from_ref(&self.prologue)
    }

    fn program(&self) -> Option<&TileProgram> {
        self.epilogue.as_ref().map(|e| &e.program)
    }
}
