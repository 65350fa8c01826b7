//! Instructions of a whole warp: shuffles, votes, matches and reductions.

use super::memory::atomic_op;
use super::opcode::Opcode;
use super::operand::operand;
use super::{Decoder, Frame, Result};
use crate::code::{Match, Op, Redux, Shuffle, ShuffleKind, Vote, VoteKind};
use crate::ptx::{Operand, Type};

impl<'m> Decoder<'m> {
    /// Decodes an instruction of a whole warp.
    pub(super) fn collective(
        &mut self,
        frame: &mut Frame,
        opcode: &Opcode,
        o: &[Operand],
    ) -> Result<()> {
        let syncs = opcode.accept("sync");
        match opcode.name {
            "activemask" => {
                let ty = opcode.ty()?;
                let d = self.destination(frame, operand(o, 0)?, ty)?;
                self.push(Op::ActiveMask { d });
                Ok(())
            }
            _ if !syncs => Err("a form without `.sync`".into()),
            "shfl" => self.shuffle(frame, opcode, o),
            "vote" => self.vote(frame, opcode, o),
            "match" => self.matches(frame, opcode, o),
            "elect" => {
                let (leader, elected) = Self::pair(operand(o, 0)?);
                let d = self.destination(frame, leader, Type::U32)?;
                let elected = self.predicate_destination(frame, elected)?;
                let members = self.source(frame, operand(o, 1)?, Type::U32)?;
                self.push(Op::Elect {
                    d,
                    elected,
                    members,
                });
                Ok(())
            }
            _ => {
                let op = opcode.take(atomic_op).ok_or("unsupported operation")?;
                let ty = opcode.ty()?;
                if ty.size() != 4 || ty.is_float() {
                    return Err("unsupported form".into());
                }
                let a = self.source(frame, operand(o, 1)?, ty)?;
                let members = self.source(frame, operand(o, 2)?, Type::U32)?;
                let d = self.destination(frame, operand(o, 0)?, ty)?;
                self.push(Op::Redux(Box::new(Redux {
                    op,
                    ty,
                    d,
                    a,
                    members,
                })));
                Ok(())
            }
        }
    }

    fn shuffle(&mut self, frame: &mut Frame, opcode: &Opcode, o: &[Operand]) -> Result<()> {
        let kind = opcode.take(|part| {
            Some(match part {
                "up" => ShuffleKind::Up,
                "down" => ShuffleKind::Down,
                "bfly" => ShuffleKind::Butterfly,
                "idx" => ShuffleKind::Index,
                _ => return None,
            })
        });
        let kind = kind.ok_or("unsupported form")?;
        let ty = opcode.ty()?;
        let (to, in_range) = Self::pair(operand(o, 0)?);
        let a = self.source(frame, operand(o, 1)?, ty)?;
        let b = self.source(frame, operand(o, 2)?, Type::U32)?;
        let c = self.source(frame, operand(o, 3)?, Type::U32)?;
        let members = self.source(frame, operand(o, 4)?, Type::U32)?;
        let d = self.destination(frame, to, ty)?;
        let in_range = self.predicate_destination(frame, in_range)?;
        self.push(Op::Shuffle(Box::new(Shuffle {
            kind,
            d,
            in_range,
            a,
            b,
            c,
            members,
        })));
        Ok(())
    }

    fn vote(&mut self, frame: &mut Frame, opcode: &Opcode, o: &[Operand]) -> Result<()> {
        let kind = opcode.take(|part| {
            Some(match part {
                "all" => VoteKind::All,
                "any" => VoteKind::Any,
                "uni" => VoteKind::Uniform,
                "ballot" => VoteKind::Ballot,
                _ => return None,
            })
        });
        let kind = kind.ok_or("unsupported form")?;
        let _ = opcode.ty()?;
        let (source, negated) = self.predicate(frame, operand(o, 1)?)?;
        let members = self.source(frame, operand(o, 2)?, Type::U32)?;
        let d = match kind {
            VoteKind::Ballot => self.destination(frame, operand(o, 0)?, Type::U32)?,
            _ => self.predicate_destination(frame, operand(o, 0)?)?,
        };
        self.push(Op::Vote(Box::new(Vote {
            kind,
            d,
            source,
            negated,
            members,
        })));
        Ok(())
    }

    fn matches(&mut self, frame: &mut Frame, opcode: &Opcode, o: &[Operand]) -> Result<()> {
        let all = opcode.accept("all");
        let _ = opcode.accept("any");
        let ty = opcode.ty()?;
        let (to, equal) = Self::pair(operand(o, 0)?);
        let a = self.source(frame, operand(o, 1)?, ty)?;
        let members = self.source(frame, operand(o, 2)?, Type::U32)?;
        let d = self.destination(frame, to, Type::U32)?;
        let equal = self.predicate_destination(frame, equal)?;
        let wide = ty.is_wide();
        self.push(Op::Match(Box::new(Match {
            all,
            wide,
            d,
            equal,
            a,
            members,
        })));
        Ok(())
    }
}
