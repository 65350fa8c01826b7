//! The places where images change between channels first and channels last, and the reasons.

use crate::lines::describe_op;
use crate::uses::written;
use kiln_base::Dim;
use kiln_codegen::{Conversion, Launch, Origin, Program, Sequence};
use kiln_ir::{Graph, Loc, Value};
use std::fmt;

/// An image that a kernel reads in another layout than that of the kernel's results.
#[derive(Clone, Debug)]
pub struct ConversionInfo {
    /// The op that gives the image, with its shape and the user's line.
    pub value: String,
    /// The image's bytes.
    pub bytes: Dim,
    /// The kernel that writes it; `None` for an input.
    pub writer: Option<String>,
    /// The kernel that reads it.
    pub reader: String,
    /// True if the reader has channels last, and the image channels first; else it is the other way round.
    pub channels_last: bool,
    /// True if the image has channels first regardless of its readers: it is an input or a result of the program, or
    /// is read by a reshape or a library kernel that is not a convolution.
    pub kept: bool,
    /// True if the reader copies the image into its layout; else it reads with strides.
    pub copied: bool,
}

/// The conversions of a program.
pub(super) fn conversions(
    graph: &Graph,
    (program, sequence): (&Program, &Sequence),
    resolve: &dyn Fn(&Loc) -> Loc,
) -> Vec<ConversionInfo> {
    let info = |c: &Conversion| {
        let node = graph.node(c.value.node);
        let fact = &node.facts[c.value.output as usize];
        let name = |v| kernel_of(sequence, v).map(|l| l.kernel.name().to_string());
        ConversionInfo {
            value: describe_op(node.op.name(), fact, &resolve(&node.loc)),
            bytes: c.bytes.clone(),
            writer: name(c.value),
            reader: name(c.reader).unwrap_or_default(),
            channels_last: c.channels_last,
            kept: c.kept,
            copied: c.copied,
        }
    };
    program.layout.conversions.iter().map(info).collect()
}

/// The launch that writes a value, or the intermediates that it is computed from.
fn kernel_of(sequence: &Sequence, value: Value) -> Option<&Launch> {
    let writes = |launch: &&Launch| {
        let mut origins = written(launch).map(|b| &sequence.buffers[b.0 as usize].origin);
        origins.any(|o| matches!(o, Origin::Value(v) | Origin::Derived(v) if *v == value))
    };
    sequence.launches.iter().find(writes)
}

impl ConversionInfo {
    /// The approximate number of bytes of memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        let writer = self.writer.as_ref().map_or(0, String::len);
        std::mem::size_of::<ConversionInfo>() + self.value.len() + writer + self.reader.len()
    }
}

impl fmt::Display for ConversionInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [from, to] = match self.channels_last {
            true => ["first", "last"],
            false => ["last", "first"],
        };
        write!(f, "{}, {} bytes: channels {from}", self.value, self.bytes)?;
        match (&self.writer, self.kept) {
            (Some(writer), false) => write!(f, " as {writer} writes it")?,
            (Some(writer), true) => write!(f, " in any case, written by {writer}")?,
            (None, _) => write!(f, " as an input")?,
        }
        let reads = match self.copied {
            true => "copies it",
            false => "steps through it",
        };
        write!(f, "; {} has channels {to} and {reads}", self.reader)
    }
}
