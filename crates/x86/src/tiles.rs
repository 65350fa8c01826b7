//! Instructions on tiles (AMX): matrices of up to 16 rows of 64 bytes, in eight registers.
//!
//! The rows and bytes of each register are configured first; the sizes of a product's tiles must match. Code that has
//! configured tiles releases them before it returns.

use crate::asm::{Asm, address};
use crate::operand::{Gpr, Mem};
use iced_x86::{Code, Instruction, Register};

/// A tile register: one of eight.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tile(pub u8);

impl Tile {
    fn register(self) -> Register {
        Register::TMM0 + u32::from(self.0)
    }
}

/// The terms that a product of tiles multiplies. Each word of 32 bits holds several terms; in B these are consecutive
/// rows of one column.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TileProduct {
    /// Two bf16, accumulated in f32: `TDPBF16PS`.
    Bf16,
    /// Two f16, accumulated in f32: `TDPFP16PS`.
    F16,
    /// Four unsigned bytes by four signed ones, accumulated in i32: `TDPBUSD`.
    U8I8,
}

/// The rows, and the bytes of a row, of each tile.
#[derive(Copy, Clone, Debug, Default)]
pub struct TileSizes([(u8, u8); 8]);

impl TileSizes {
    /// Sets the size of a tile: its rows, and the bytes of each.
    ///
    /// # Panics
    /// If there are more than 16 rows of 64 bytes.
    pub fn with(mut self, tile: Tile, rows: u8, bytes: u8) -> TileSizes {
        assert!(rows <= 16 && bytes <= 64, "a tile of {rows} by {bytes}");
        self.0[usize::from(tile.0)] = (rows, bytes);
        self
    }

    /// Returns the configuration as the processor reads it.
    fn bytes(&self) -> [u8; 64] {
        let mut all = [0; 64];
        all[0] = 1; // the palette: eight tiles
        for (i, (rows, bytes)) in self.0.iter().enumerate() {
            (all[16 + 2 * i], all[48 + i]) = (*bytes, *rows);
        }
        all
    }
}

impl Asm {
    /// Configures the tiles, which are then zero.
    pub fn configure_tiles(&mut self, sizes: &TileSizes) {
        let at = self.constant(&sizes.bytes());
        self.made(Instruction::with1(Code::VEX_Ldtilecfg_m512, address(at)));
    }

    /// Ends the use of tiles.
    pub fn release_tiles(&mut self) {
        self.encode(&Instruction::with(Code::VEX_Tilerelease));
    }

    /// Zeroes a tile.
    pub fn zero_tile(&mut self, tile: Tile) {
        let code = Code::VEX_Tilezero_tmm;
        self.made(Instruction::with1(code, tile.register()));
    }

    /// Loads a tile, whose rows have the stride in a register.
    pub fn load_tile(&mut self, to: Tile, from: Mem, apart: Gpr) {
        let from = address(from.index(apart, 1));
        let code = Code::VEX_Tileloadd_tmm_sibmem;
        self.made(Instruction::with2(code, to.register(), from));
    }

    /// Stores a tile, with the stride of rows in a register.
    pub fn store_tile(&mut self, to: Mem, apart: Gpr, from: Tile) {
        let to = address(to.index(apart, 1));
        let code = Code::VEX_Tilestored_sibmem_tmm;
        self.made(Instruction::with2(code, to, from.register()));
    }

    /// `sums += left · right`.
    pub fn multiply_tiles(&mut self, by: TileProduct, sums: Tile, left: Tile, right: Tile) {
        let code = match by {
            TileProduct::Bf16 => Code::VEX_Tdpbf16ps_tmm_tmm_tmm,
            TileProduct::F16 => Code::VEX_Tdpfp16ps_tmm_tmm_tmm,
            TileProduct::U8I8 => Code::VEX_Tdpbusd_tmm_tmm_tmm,
        };
        let [sums, left, right] = [sums, left, right].map(Tile::register);
        self.made(Instruction::with3(code, sums, left, right));
    }
}
