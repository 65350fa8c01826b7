//! The types of PTX.

/// A type as an opcode or a declaration spells it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum Type {
    U8,
    S8,
    U16,
    S16,
    U32,
    S32,
    U64,
    S64,
    B128,
    F16,
    Bf16,
    U16x2,
    S16x2,
    F16x2,
    Bf16x2,
    Tf32,
    F32,
    F64,
    Pred,
}

impl Type {
    /// The type that a modifier names. Untyped bits are unsigned integers.
    pub fn parse(word: &str) -> Option<Type> {
        Some(match word {
            "u8" | "b8" => Type::U8,
            "s8" => Type::S8,
            "u16" | "b16" => Type::U16,
            "s16" => Type::S16,
            "u32" | "b32" => Type::U32,
            "s32" => Type::S32,
            "u64" | "b64" => Type::U64,
            "s64" => Type::S64,
            "b128" => Type::B128,
            "f16" => Type::F16,
            "bf16" => Type::Bf16,
            "u16x2" => Type::U16x2,
            "s16x2" => Type::S16x2,
            "f16x2" => Type::F16x2,
            "bf16x2" => Type::Bf16x2,
            "tf32" => Type::Tf32,
            "f32" => Type::F32,
            "f64" => Type::F64,
            "pred" => Type::Pred,
            _ => return None,
        })
    }

    /// Bytes in memory.
    pub fn size(self) -> usize {
        match self {
            Type::U8 | Type::S8 | Type::Pred => 1,
            Type::U16 | Type::S16 | Type::F16 | Type::Bf16 => 2,
            Type::U64 | Type::S64 | Type::F64 => 8,
            Type::B128 => 16,
            _ => 4,
        }
    }

    /// True if a register of this type takes 64 bits a lane.
    pub fn is_wide(self) -> bool {
        self.size() == 8
    }

    /// True for signed integers.
    pub fn is_signed(self) -> bool {
        matches!(self, Type::S8 | Type::S16 | Type::S32 | Type::S64)
    }

    /// True for floating-point types, including packed pairs.
    pub fn is_float(self) -> bool {
        use Type::*;
        matches!(self, F16 | Bf16 | F16x2 | Bf16x2 | Tf32 | F32 | F64)
    }
}
