//! Asynchronous copies and the mbarriers that they signal.

use super::opcode::Opcode;
use super::operand::{immediate, operand};
use super::{Decoder, Frame, Result};
use crate::code::{AsyncCopy, Bulk, Mbarrier, Op};
use crate::ptx::{Operand, Space, Type};

impl<'m> Decoder<'m> {
    /// Decodes an asynchronous copy or an mbarrier operation.
    pub(super) fn asynchronous(
        &mut self,
        frame: &mut Frame,
        opcode: &Opcode,
        o: &[Operand],
    ) -> Result<()> {
        match opcode.name {
            "mbarrier" => self.mbarrier(frame, opcode, o),
            _ if opcode.accept("bulk") => self.bulk(frame, opcode, o),
            _ => self.async_copy(frame, opcode, o),
        }
    }

    fn async_copy(&mut self, frame: &mut Frame, opcode: &Opcode, o: &[Operand]) -> Result<()> {
        let _ = opcode.accept("async");
        if opcode.accept("commit_group") {
            self.push(Op::AsyncCommit);
        } else if opcode.accept("wait_group") {
            let pending = Some(self.source(frame, operand(o, 0)?, Type::U32)?);
            self.push(Op::AsyncWait { pending });
        } else if opcode.accept("wait_all") {
            self.push(Op::AsyncWait { pending: None });
        } else {
            opcode.ignore_hints();
            let (to, from) = (self.space(opcode), self.space(opcode));
            if (to, from) != (Space::Shared, Space::Global) {
                return Err("unsupported form".into());
            }
            let size = immediate(operand(o, 2)?)? as u8;
            let read = match o.get(3) {
                Some(o) => Some(self.source(frame, o, Type::U32)?),
                None => None,
            };
            self.shared_granule = self.shared_granule.min(size as usize);
            let (to, from) = (
                self.address(frame, operand(o, 0)?)?,
                self.address(frame, operand(o, 1)?)?,
            );
            self.push(Op::AsyncCopy(Box::new(AsyncCopy {
                to,
                from,
                size,
                read,
            })));
        }
        Ok(())
    }

    fn mbarrier(&mut self, frame: &mut Frame, opcode: &Opcode, o: &[Operand]) -> Result<()> {
        opcode.ignore_hints();
        self.shared_granule = self.shared_granule.min(8);
        let expects = opcode.accept("expect_tx");
        let operation = if opcode.accept("init") {
            let at = self.address(frame, operand(o, 0)?)?;
            Mbarrier::Init {
                at,
                count: self.source(frame, operand(o, 1)?, Type::U32)?,
            }
        } else if opcode.accept("inval") {
            Mbarrier::Invalidate {
                at: self.address(frame, operand(o, 0)?)?,
            }
        } else if opcode.accept("arrive") {
            // The state is left out for barriers of other blocks of a cluster.
            let has_state = !matches!(operand(o, 0)?, Operand::Address(..));
            let state = match has_state {
                true => self.destination(frame, operand(o, 0)?, Type::U64)?,
                false => self.fresh(true),
            };
            let o = &o[has_state as usize..];
            let at = self.address(frame, operand(o, 0)?)?;
            let number = match o.get(1) {
                Some(o) => Some(self.source(frame, o, Type::U32)?),
                None => None,
            };
            let (count, bytes) = if expects {
                (None, number)
            } else {
                (number, None)
            };
            Mbarrier::Arrive {
                at,
                state,
                count,
                bytes,
            }
        } else if expects {
            let at = self.address(frame, operand(o, 0)?)?;
            Mbarrier::Expect {
                at,
                bytes: self.source(frame, operand(o, 1)?, Type::U32)?,
            }
        } else if opcode.accept("try_wait") || opcode.accept("test_wait") {
            let parity = opcode.accept("parity");
            let ty = if parity { Type::U32 } else { Type::U64 };
            let done = self.predicate_destination(frame, operand(o, 0)?)?;
            let at = self.address(frame, operand(o, 1)?)?;
            Mbarrier::Test {
                at,
                done,
                phase: self.source(frame, operand(o, 2)?, ty)?,
                parity,
            }
        } else {
            return Err("unsupported form".into());
        };
        let _ = self.space(opcode);
        let _ = opcode.ty()?;
        self.push(Op::Mbarrier(Box::new(operation)));
        Ok(())
    }

    fn bulk(&mut self, frame: &mut Frame, opcode: &Opcode, o: &[Operand]) -> Result<()> {
        opcode.ignore_hints();
        let _ = (
            opcode.accept("async"),
            opcode.accept("bulk_group"),
            opcode.accept("read"),
        );
        if opcode.accept("commit_group") {
            self.push(Op::Bulk(Box::new(Bulk::Commit)));
            return Ok(());
        }
        if opcode.accept("wait_group") {
            self.push(Op::Bulk(Box::new(Bulk::Wait)));
            return Ok(());
        }
        self.shared_granule = self.shared_granule.min(4);
        let dimensions = opcode
            .accept("tensor")
            .then(|| opcode.take(|p| p.strip_suffix('d').and_then(|n| n.parse::<usize>().ok())))
            .flatten();
        let _ = (
            opcode.accept("tile"),
            opcode.accept("mbarrier::complete_tx::bytes"),
        );
        let (to, from) = (self.space(opcode), self.space(opcode));
        let multicast = opcode.accept("multicast::cluster");
        let operation = match (dimensions, to, from) {
            (None, ..) if multicast => return Err("unsupported form".into()),
            (None, Space::Shared, Space::Global) => Bulk::Load {
                to: self.address(frame, operand(o, 0)?)?,
                from: self.address(frame, operand(o, 1)?)?,
                bytes: self.source(frame, operand(o, 2)?, Type::U32)?,
                barrier: self.address(frame, operand(o, 3)?)?,
            },
            (Some(n), Space::Shared, Space::Global) => {
                let (map, at) = self.tensor(frame, operand(o, 1)?, n)?;
                Bulk::LoadTensor {
                    to: self.address(frame, operand(o, 0)?)?,
                    map,
                    at,
                    barrier: self.address(frame, operand(o, 2)?)?,
                    blocks: match multicast {
                        true => Some(self.source(frame, operand(o, 3)?, Type::U16)?),
                        false => None,
                    },
                }
            }
            (Some(n), Space::Global, Space::Shared) => {
                let (map, at) = self.tensor(frame, operand(o, 0)?, n)?;
                Bulk::StoreTensor {
                    from: self.address(frame, operand(o, 1)?)?,
                    map,
                    at,
                }
            }
            _ => return Err("unsupported form".into()),
        };
        self.push(Op::Bulk(Box::new(operation)));
        Ok(())
    }

    /// `[map, {x, y}]`
    fn tensor(
        &mut self,
        frame: &mut Frame,
        o: &Operand,
        dimensions: usize,
    ) -> Result<(crate::code::Address, Vec<u32>)> {
        let Operand::Tensor(map, coordinates) = o else {
            return Err("a tensor copy without coordinates".into());
        };
        if coordinates.len() != dimensions {
            return Err("the number of coordinates is not that of the opcode".into());
        }
        let at = coordinates
            .iter()
            .map(|c| self.source(frame, c, Type::S32))
            .collect::<Result<_>>()?;
        Ok((self.address(frame, map)?, at))
    }
}
