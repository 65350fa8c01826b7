//! Model files read into place.
//!
//! A file is walked on the level of protobuf's wire format. The bytes of large initial values are skipped, and read when
//! their tensors are made. So weights are in memory once.

use crate::proto::{GraphProto, ModelProto, TensorProto};
use kiln_tensor::memory::Budget;
use prost::Message;
use prost::bytes::Bytes;
use prost::encoding::encode_varint;
use std::fs::File;
use std::io::{BufReader, Error, ErrorKind, Read, Result};

/// The minimum number of bytes that are skipped: more than those of a value whose elements are known while recording.
const MIN_BYTES: u64 = 1 << 16;

/// The maximum number of bytes of a field's key and its length or value.
const VARINTS: u64 = 20;

/// The numbers of the fields that lead to the bytes of an initial value.
const GRAPH: u64 = 7;
const INITIALIZER: u64 = 5;
const RAW_DATA: u64 = 9;

/// Bytes in a file.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub offset: u64,
    pub bytes: u64,
}

/// Reads a model of `length` bytes without the large initial values, and returns where these are, in the order of the
/// graph's initialisers.
///
/// # Errors
/// If the file can't be read, is damaged, or has fields in parts, which is legal and refused: reading it as a whole says
/// which.
pub(crate) fn read(file: &mut File, length: u64) -> Result<(ModelProto, Vec<Option<Span>>)> {
    let mut walk = Walk {
        file: BufReader::new(file),
        at: 0,
        budget: Budget::new(),
    };
    let (mut model, mut graph) = (Vec::new(), None);
    walk.message(length, &mut model, |walk, field, end| {
        if field != GRAPH {
            return Ok(false);
        }
        let is_single = graph.replace(walk.graph(end)?).is_none();
        is_single.then_some(true).ok_or_else(refused)
    })?;
    let mut model = ModelProto::decode(Bytes::from(model))?;
    let mut spans = Vec::new();
    if let Some((graph, initial)) = graph {
        let mut graph = GraphProto::decode(Bytes::from(graph))?;
        (graph.initializer, spans) = initial.into_iter().unzip();
        model.graph = Some(graph);
    }
    Ok((model, spans))
}

fn refused() -> Error {
    Error::new(ErrorKind::InvalidData, "the file is damaged or refused")
}

struct Walk<'a> {
    file: BufReader<&'a mut File>,
    at: u64,
    budget: Budget,
}

/// The fields of a graph without its initial values, and these.
type Graph = (Vec<u8>, Vec<(TensorProto, Option<Span>)>);

impl Walk<'_> {
    fn graph(&mut self, end: u64) -> Result<Graph> {
        let (mut rest, mut initial) = (Vec::new(), Vec::new());
        self.message(end, &mut rest, |walk, field, end| {
            if field != INITIALIZER {
                return Ok(false);
            }
            initial.push(walk.tensor(end)?);
            Ok(true)
        })?;
        Ok((rest, initial))
    }

    fn tensor(&mut self, end: u64) -> Result<(TensorProto, Option<Span>)> {
        let (mut rest, mut span) = (Vec::new(), None);
        self.message(end, &mut rest, |walk, field, end| {
            let (offset, bytes) = (walk.at, end - walk.at);
            if field != RAW_DATA || bytes < MIN_BYTES {
                return Ok(false);
            }
            walk.file.seek_relative(bytes as i64)?;
            walk.at = end;
            let is_single = span.replace(Span { offset, bytes }).is_none();
            is_single.then_some(true).ok_or_else(refused)
        })?;
        Ok((TensorProto::decode(Bytes::from(rest))?, span))
    }

    /// Walks the fields of a message up to `end`. `take` is given those with a length, and where they end; what it does
    /// not take goes to `kept`.
    fn message(
        &mut self,
        end: u64,
        kept: &mut Vec<u8>,
        mut take: impl FnMut(&mut Self, u64, u64) -> Result<bool>,
    ) -> Result<()> {
        while self.at < end {
            let key = self.varint()?;
            if key >> 3 == 0 {
                return Err(refused());
            }
            self.spend(VARINTS)?;
            let begin = kept.len();
            encode_varint(key, kept);
            match key & 7 {
                0 => encode_varint(self.varint()?, kept),
                1 => self.copy(8, kept)?,
                5 => self.copy(4, kept)?,
                2 => {
                    let bytes = self.varint()?;
                    let to = self.at.checked_add(bytes).filter(|to| *to <= end);
                    let to = to.ok_or_else(refused)?;
                    if take(self, key >> 3, to)? {
                        kept.truncate(begin);
                    } else {
                        encode_varint(bytes, kept);
                        self.copy(bytes, kept)?;
                    }
                }
                _ => return Err(refused()),
            }
        }
        (self.at == end).then_some(()).ok_or_else(refused)
    }

    /// Counts bytes that are kept.
    fn spend(&mut self, bytes: u64) -> Result<()> {
        self.budget.spend(bytes, "the model").map_err(Error::other)
    }

    fn copy(&mut self, bytes: u64, kept: &mut Vec<u8>) -> Result<()> {
        self.spend(bytes)?;
        let copied = self.file.by_ref().take(bytes).read_to_end(kept)?;
        self.at += bytes;
        (copied as u64 == bytes).then_some(()).ok_or_else(refused)
    }

    fn varint(&mut self) -> Result<u64> {
        let mut n = 0;
        for shift in (0..64).step_by(7) {
            let mut byte = [0];
            self.file.read_exact(&mut byte)?;
            self.at += 1;
            n |= u64::from(byte[0] & 0x7f) << shift;
            if byte[0] < 0x80 {
                return Ok(n);
            }
        }
        Err(refused())
    }
}
