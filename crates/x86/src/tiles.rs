//! AMX instructions. A tile is a matrix of up to 16 rows of 64 bytes, in one of eight registers.
//!
//! Code configures the rows and bytes of each tile before use, and releases tiles before it returns. The sizes of a
//! product's tiles must match.

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

/// The dtypes of a product of tiles. Each word of 32 bits holds several elements; in B these are consecutive rows of
/// one column.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TileProduct {
    /// Two bf16, accumulated in f32: `TDPBF16PS`.
    Bf16,
    /// Two f16, accumulated in f32: `TDPFP16PS`.
    F16,
    /// Four unsigned bytes by four signed ones, accumulated in i32: `TDPBUSD`.
    U8I8,
}

/// The number of rows and the bytes of a row of each tile.
#[derive(Copy, Clone, Debug, Default)]
pub struct TileSizes([(u8, u8); 8]);

impl TileSizes {
    /// Sets the number of rows and the bytes of a row of a tile.
    ///
    /// # Panics
    /// If there are more than 16 rows of 64 bytes.
    pub fn with(mut self, tile: Tile, rows: u8, bytes: u8) -> TileSizes {
        assert!(rows <= 16 && bytes <= 64, "a tile of {rows} by {bytes}");
        self.0[usize::from(tile.0)] = (rows, bytes);
        self
    }

    /// Returns the operand of `LDTILECFG`.
    fn bytes(&self) -> [u8; 64] {
        let mut config = [0; 64];
        config[0] = 1; // the palette: eight tiles
        for (i, (rows, bytes)) in self.0.iter().enumerate() {
            (config[16 + 2 * i], config[48 + i]) = (*bytes, *rows);
        }
        config
    }
}

impl Asm {
    /// Configures the tiles, which are then zero.
    pub fn configure_tiles(&mut self, sizes: &TileSizes) {
        let config = self.constant(&sizes.bytes());
        self.append(Instruction::with1(
            Code::VEX_Ldtilecfg_m512,
            address(config),
        ));
    }

    /// Releases the tiles.
    pub fn release_tiles(&mut self) {
        self.encode(&Instruction::with(Code::VEX_Tilerelease));
    }

    /// Zeroes a tile.
    pub fn zero_tile(&mut self, tile: Tile) {
        let code = Code::VEX_Tilezero_tmm;
        self.append(Instruction::with1(code, tile.register()));
    }

    /// Loads a tile; a register holds the stride of rows in bytes.
    pub fn load_tile(&mut self, to: Tile, from: Mem, stride: Gpr) {
        let from = address(from.index(stride, 1));
        let code = Code::VEX_Tileloadd_tmm_sibmem;
        self.append(Instruction::with2(code, to.register(), from));
    }

    /// Stores a tile; a register holds the stride of rows in bytes.
    pub fn store_tile(&mut self, to: Mem, stride: Gpr, from: Tile) {
        let to = address(to.index(stride, 1));
        let code = Code::VEX_Tilestored_sibmem_tmm;
        self.append(Instruction::with2(code, to, from.register()));
    }

    /// Appends `c += a · b`.
    pub fn multiply_tiles(&mut self, product: TileProduct, c: Tile, a: Tile, b: Tile) {
        let code = match product {
            TileProduct::Bf16 => Code::VEX_Tdpbf16ps_tmm_tmm_tmm,
            TileProduct::F16 => Code::VEX_Tdpfp16ps_tmm_tmm_tmm,
            TileProduct::U8I8 => Code::VEX_Tdpbusd_tmm_tmm_tmm,
        };
        let [c, a, b] = [c, a, b].map(Tile::register);
        self.append(Instruction::with3(code, c, a, b));
    }
}
