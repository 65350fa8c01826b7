//! Tiles: their configuration, loads and stores row by row, and products.

use super::integer::add_bytes;
use crate::cpu::Action;
use crate::cpu::Cpu;
use crate::fault::{FaultKind, Outcome, raise};
use crate::number::{Float, flushed, from_half};
use crate::step::{Index, OperandLocation, Step};
use crate::tile::{BYTES, ROWS, Tile};
use iced_x86::Mnemonic::*;

pub(super) fn action(step: &Step) -> Option<Action> {
    actions! { step;
        Ldtilecfg => |c, s| c.configure(s);
        Tilerelease => |c, _| {
            c.tiles = None;
            Ok(())
        };
        Tilezero => |c, s| {
            c.tile(s, 0)?.words = Default::default();
            Ok(())
        };
        Tileloadd | Tileloaddt1 => |c, s| {
            let mut tile = *c.tile(s, 0)?;
            tile.words = Default::default();
            for i in 0..tile.rows {
                let mut row = [0; BYTES];
                let at = c.row(s, 1, i)?;
                c.memory.read(at, &mut row[..tile.bytes])?;
                for (to, word) in tile.words[i].iter_mut().zip(row.chunks_exact(4)) {
                    *to = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                }
            }
            *c.tile(s, 0)? = tile;
            Ok(())
        };
        Tilestored => |c, s| {
            let tile = *c.tile(s, 1)?;
            for i in 0..tile.rows {
                let row: Vec<u8> = tile.words[i].iter().flat_map(|w| w.to_le_bytes()).collect();
                let at = c.row(s, 0, i)?;
                c.memory.write(at, &row[..tile.bytes])?;
            }
            Ok(())
        };
        Tdpbf16ps => |c, s| c.multiply(s, |sum, pairs| halves(bf16, sum, pairs));
        Tdpfp16ps => |c, s| c.multiply(s, |sum, pairs| halves(from_half, sum, pairs));
        Tdpbusd => |c, s| {
            c.multiply(s, |sum, pairs| {
                let add = |sum: i32, (a, b): (u32, u32)| add_bytes(sum, a as i32, b as i32);
                pairs.fold(sum as i32, add) as u32
            })
        };
    }
}

fn bf16(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

/// Sums the first terms of all pairs and the second ones separately, then adds both. Subnormal f32 are zero: bf16 may
/// be such, f16 are none.
fn halves(widened: fn(u16) -> f32, sum: u32, pairs: &mut dyn Iterator<Item = (u32, u32)>) -> u32 {
    let [mut first, mut second] = [0f32; 2];
    for (a, b) in pairs {
        let add = |sum: f32, at: u32| {
            let [a, b] = [a, b].map(|pair| flushed(widened((pair >> at) as u16)));
            flushed(a.fused(b, sum))
        };
        first = add(first, 0);
        second = add(second, 16);
    }
    let both = flushed(first.plus(second));
    flushed(flushed(f32::from_bits(sum)).plus(both)).to_bits()
}

fn wrong<T>(message: String) -> Outcome<T> {
    raise(FaultKind::Tiles, message)
}

impl Cpu<'_, '_> {
    fn configure(&mut self, step: &Step) -> Outcome<()> {
        let all = self.vector(step, 0)?.0;
        let others = all[1..16].iter().chain(&all[32..48]).chain(&all[56..]);
        if all[0] != 1 || others.copied().any(|b| b != 0) {
            return wrong(format!("no configuration: {all:?}"));
        }
        let mut tiles = [None; 8];
        for (i, tile) in tiles.iter_mut().enumerate() {
            let bytes = usize::from(u16::from_le_bytes([all[16 + 2 * i], all[17 + 2 * i]]));
            let rows = usize::from(all[48 + i]);
            if rows > ROWS || bytes > BYTES || (rows == 0) != (bytes == 0) {
                return wrong(format!("tile {i} of {rows} rows of {bytes} bytes"));
            }
            let words = Default::default();
            *tile = (rows > 0).then_some(Tile { rows, bytes, words });
        }
        self.tiles = Some(tiles);
        Ok(())
    }

    /// The tile of an operand.
    fn tile(&mut self, step: &Step, i: usize) -> Outcome<&mut Tile> {
        let OperandLocation::Tile(at) = step.operands[i] else {
            return wrong(format!("operand {i} is not a tile"));
        };
        let tiles = self.tiles.as_mut();
        let found = tiles.and_then(|t| t[at].as_mut());
        found.map_or_else(|| wrong(format!("tile {at} is not configured")), Ok)
    }

    /// The address of a row of an operand; the index register holds the distance of rows.
    fn row(&self, step: &Step, i: usize, row: usize) -> Outcome<u64> {
        let OperandLocation::Memory(m) = step.operands[i] else {
            return wrong(format!("operand {i} is not in memory"));
        };
        let apart = match m.index {
            Index::Gpr(r) => self.gprs[r].wrapping_mul(m.scale),
            _ => 0,
        };
        // The address has one distance in it.
        let first = self.address(&m).wrapping_sub(apart);
        Ok(first.wrapping_add(apart.wrapping_mul(row as u64)))
    }

    /// Updates each word of the accumulator tile with a function of it and of the words of a row and a column.
    fn multiply(
        &mut self,
        step: &Step,
        add: impl Fn(u32, &mut dyn Iterator<Item = (u32, u32)>) -> u32,
    ) -> Outcome<()> {
        let [mut sums, left, right] = [
            *self.tile(step, 0)?,
            *self.tile(step, 1)?,
            *self.tile(step, 2)?,
        ];
        let fit = sums.rows == left.rows
            && sums.bytes == right.bytes
            && left.bytes == 4 * right.rows
            && sums.bytes.is_multiple_of(4);
        if !fit {
            let sizes = [sums, left, right].map(|t| (t.rows, t.bytes));
            return wrong(format!("a product of tiles of {sizes:?} rows and bytes"));
        }
        for i in 0..sums.rows {
            for j in 0..sums.bytes / 4 {
                let mut pairs = (0..right.rows).map(|k| (left.words[i][k], right.words[k][j]));
                sums.words[i][j] = add(sums.words[i][j], &mut pairs);
            }
        }
        *self.tile(step, 0)? = sums;
        Ok(())
    }
}
