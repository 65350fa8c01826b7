//! Asynchronous copies and the mbarriers that they signal.

use super::{Decoder, Result};
use crate::code::{Address, AsyncCopy, Bulk, Mbarrier, Op};
use crate::lanes::Slot;
use crate::ptx::{Operand, Space, Type};

impl Decoder<'_> {
    /// Decodes an asynchronous copy or an mbarrier operation.
    pub(super) fn asynchronous(&mut self) -> Result<()> {
        let name = self.opcode.name;
        let op = match name {
            "mbarrier" => Op::Mbarrier(Box::new(self.mbarrier()?)),
            _ if self.opcode.accept("bulk") => Op::Bulk(Box::new(self.bulk()?)),
            _ => self.async_copy()?,
        };
        self.push(op);
        Ok(())
    }

    fn async_copy(&mut self) -> Result<Op> {
        self.opcode.skip(&["async"]);
        if self.opcode.accept("commit_group") {
            return Ok(Op::AsyncCommit);
        }
        if self.opcode.accept("wait_group") {
            let pending = Some(self.source(0, Type::U32)?);
            return Ok(Op::AsyncWait { pending });
        }
        if self.opcode.accept("wait_all") {
            return Ok(Op::AsyncWait { pending: None });
        }
        self.opcode.ignore_hints();
        if [self.opcode.space(), self.opcode.space()] != [Space::Shared, Space::Global] {
            return Err("unsupported form".into());
        }
        let size = self.immediate(2)? as u8;
        self.kernel.shared_granule = self.kernel.shared_granule.min(size as usize);
        Ok(Op::AsyncCopy(Box::new(AsyncCopy {
            read: self.optional_source(3, Type::U32)?,
            to: self.address(0)?,
            from: self.address(1)?,
            size,
        })))
    }

    fn mbarrier(&mut self) -> Result<Mbarrier> {
        self.opcode.ignore_hints();
        self.kernel.shared_granule = self.kernel.shared_granule.min(8);
        let expects = self.opcode.accept("expect_tx");
        let operation = if self.opcode.accept("init") {
            Mbarrier::Init {
                at: self.address(0)?,
                count: self.source(1, Type::U32)?,
            }
        } else if self.opcode.accept("inval") {
            let at = self.address(0)?;
            Mbarrier::Invalidate { at }
        } else if self.opcode.accept("arrive") {
            // The state is left out for barriers of other blocks of a cluster.
            let has_state = !matches!(self.operand(0)?, Operand::Address(..));
            let state = match has_state {
                true => self.destination(0, Type::U64)?,
                false => self.fresh(true),
            };
            let first = has_state as usize;
            let at = self.address(first)?;
            let number = self.optional_source(first + 1, Type::U32)?;
            Mbarrier::Arrive {
                at,
                state,
                count: number.filter(|_| !expects),
                bytes: number.filter(|_| expects),
            }
        } else if expects {
            Mbarrier::Expect {
                at: self.address(0)?,
                bytes: self.source(1, Type::U32)?,
            }
        } else if self.opcode.one_of(&["try_wait", "test_wait"]).is_some() {
            let parity = self.opcode.accept("parity");
            let ty = if parity { Type::U32 } else { Type::U64 };
            Mbarrier::Test {
                done: self.predicate_destination(0)?,
                at: self.address(1)?,
                phase: self.source(2, ty)?,
                parity,
            }
        } else {
            return Err("unsupported form".into());
        };
        let _ = (self.opcode.space(), self.opcode.ty()?);
        Ok(operation)
    }

    fn bulk(&mut self) -> Result<Bulk> {
        self.opcode.ignore_hints();
        self.opcode.skip(&["async", "bulk_group", "read"]);
        if self.opcode.accept("commit_group") {
            return Ok(Bulk::Commit);
        }
        if self.opcode.accept("wait_group") {
            let keep = self.immediate(0)? as u32;
            return Ok(Bulk::Wait { keep });
        }
        self.kernel.shared_granule = self.kernel.shared_granule.min(4);
        let rank = |p: &str| p.strip_suffix('d').and_then(|n| n.parse::<usize>().ok());
        let dimensions = match self.opcode.accept("tensor") {
            true => self.opcode.take(rank),
            false => None,
        };
        let im2col = self.opcode.accept("im2col");
        self.opcode.skip(&["tile", "mbarrier::complete_tx::bytes"]);
        let (to, from) = (self.opcode.space(), self.opcode.space());
        let multicast = self.opcode.accept("multicast::cluster");
        match (dimensions, to, from) {
            (None, Space::Shared, Space::Global) if !multicast => Ok(Bulk::Load {
                to: self.address(0)?,
                from: self.address(1)?,
                bytes: self.source(2, Type::U32)?,
                barrier: self.address(3)?,
            }),
            (Some(n), Space::Shared, Space::Global) => {
                let (map, at) = self.tensor(1, n)?;
                Ok(Bulk::LoadTensor {
                    to: self.address(0)?,
                    map,
                    at,
                    offsets: match im2col {
                        true => Some(self.sources(3, Type::U16)?),
                        false => None,
                    },
                    barrier: self.address(2)?,
                    blocks: match multicast {
                        true => Some(self.source(3 + usize::from(im2col), Type::U16)?),
                        false => None,
                    },
                })
            }
            (Some(n), Space::Global, Space::Shared) if !im2col => {
                let (map, at) = self.tensor(0, n)?;
                let from = self.address(1)?;
                Ok(Bulk::StoreTensor { from, map, at })
            }
            _ => Err("unsupported form".into()),
        }
    }

    /// `[map, {x, y}]`
    fn tensor(&mut self, index: usize, dimensions: usize) -> Result<(Address, Vec<Slot>)> {
        let Operand::Tensor(map, coordinates) = self.operand(index)? else {
            return Err("a tensor copy without coordinates".into());
        };
        if coordinates.len() != dimensions {
            return Err("the number of coordinates is not that of the opcode".into());
        }
        let coordinates = coordinates.iter().map(|c| self.source_of(c, Type::S32));
        let at = coordinates.collect::<Result<_>>()?;
        Ok((self.address_of(map)?, at))
    }
}
