//! Instructions of a whole warp: shuffles, votes, matches and reductions.

use super::memory::ATOMIC_OPS;
use super::{Decoder, Result};
use crate::code::{Match, Op, Redux, Shuffle, ShuffleKind, Vote, VoteKind};
use crate::ptx::Type;

impl Decoder<'_> {
    /// Decodes an instruction of a whole warp.
    pub(super) fn collective(&mut self) -> Result<()> {
        let syncs = self.opcode.accept("sync");
        let op = match self.opcode.name {
            "activemask" => {
                let ty = self.opcode.ty()?;
                let d = self.destination(0, ty)?;
                Op::ActiveMask { d }
            }
            _ if !syncs => return Err("a form without `.sync`".into()),
            "shfl" => Op::Shuffle(Box::new(self.shuffle()?)),
            "vote" => Op::Vote(Box::new(self.vote()?)),
            "match" => Op::Match(Box::new(self.matches()?)),
            "elect" => {
                let (leader, elected) = self.pair(0)?;
                Op::Elect {
                    d: self.destination_of(leader, Type::U32)?,
                    elected: self.predicate_destination_of(elected)?,
                    members: self.source(1, Type::U32)?,
                }
            }
            _ => Op::Redux(Box::new(self.redux()?)),
        };
        self.push(op);
        Ok(())
    }

    fn redux(&mut self) -> Result<Redux> {
        let op = self
            .opcode
            .choose(&ATOMIC_OPS)
            .ok_or("unsupported operation")?;
        let ty = self.opcode.ty()?;
        if ty.size() != 4 || ty.is_float() {
            return Err("unsupported form".into());
        }
        Ok(Redux {
            op,
            ty,
            a: self.source(1, ty)?,
            members: self.source(2, Type::U32)?,
            d: self.destination(0, ty)?,
        })
    }

    fn shuffle(&mut self) -> Result<Shuffle> {
        let kind = self.opcode.choose(&[
            ("up", ShuffleKind::Up),
            ("down", ShuffleKind::Down),
            ("bfly", ShuffleKind::Butterfly),
            ("idx", ShuffleKind::Index),
        ]);
        let kind = kind.ok_or("unsupported form")?;
        let ty = self.opcode.ty()?;
        let (to, in_range) = self.pair(0)?;
        Ok(Shuffle {
            kind,
            a: self.source(1, ty)?,
            b: self.source(2, Type::U32)?,
            c: self.source(3, Type::U32)?,
            members: self.source(4, Type::U32)?,
            d: self.destination_of(to, ty)?,
            in_range: self.predicate_destination_of(in_range)?,
        })
    }

    fn vote(&mut self) -> Result<Vote> {
        let kind = self.opcode.choose(&[
            ("all", VoteKind::All),
            ("any", VoteKind::Any),
            ("uni", VoteKind::Uniform),
            ("ballot", VoteKind::Ballot),
        ]);
        let kind = kind.ok_or("unsupported form")?;
        let _ = self.opcode.ty()?;
        let (source, negated) = self.predicate(1)?;
        Ok(Vote {
            kind,
            source,
            negated,
            members: self.source(2, Type::U32)?,
            d: match kind {
                VoteKind::Ballot => self.destination(0, Type::U32)?,
                _ => self.predicate_destination(0)?,
            },
        })
    }

    fn matches(&mut self) -> Result<Match> {
        let all = self.opcode.one_of(&["all", "any"]) == Some("all");
        let ty = self.opcode.ty()?;
        let (to, equal) = self.pair(0)?;
        Ok(Match {
            all,
            wide: ty.is_wide(),
            a: self.source(1, ty)?,
            members: self.source(2, Type::U32)?,
            d: self.destination_of(to, Type::U32)?,
            equal: self.predicate_destination_of(equal)?,
        })
    }
}
