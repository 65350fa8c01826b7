//! Vectors and their lanes.

/// A vector of 512 bits; narrower ones are the low bytes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Vector(pub [u8; 64]);

/// The type of a lane's value.
pub(crate) trait Lane: Copy {
    /// Bytes of a lane.
    const SIZE: usize;
    /// Reads a value from `SIZE` bytes.
    fn get(bytes: &[u8]) -> Self;
    /// Writes the value to `SIZE` bytes.
    fn put(self, bytes: &mut [u8]);
    /// A value with all bits set, or none.
    fn all(ones: bool) -> Self;
    /// The most significant bit.
    fn sign(self) -> bool;
}

macro_rules! lanes {
    ($($t:ty),*) => {
        $(impl Lane for $t {
            const SIZE: usize = size_of::<$t>();

            fn get(bytes: &[u8]) -> $t {
                let mut all = [0; size_of::<$t>()];
                all.copy_from_slice(bytes);
                <$t>::from_le_bytes(all)
            }

            fn put(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }

            fn all(ones: bool) -> $t {
                let byte = if ones { 0xFF } else { 0 };
                <$t>::from_le_bytes([byte; size_of::<$t>()])
            }

            fn sign(self) -> bool {
                self.to_le_bytes()[size_of::<$t>() - 1] & 0x80 != 0
            }
        })*
    };
}
lanes!(u8, u16, u32, u64, u128, i8, i16, i32, i64, f32, f64);

impl Vector {
    pub const ZERO: Vector = Vector([0; 64]);

    pub fn get<T: Lane>(&self, i: usize) -> T {
        T::get(&self.0[i * T::SIZE..][..T::SIZE])
    }

    pub fn set<T: Lane>(&mut self, i: usize, x: T) {
        x.put(&mut self.0[i * T::SIZE..][..T::SIZE]);
    }

    /// The most significant bits of the lanes in the first bytes, as a mask.
    pub fn signs<T: Lane>(&self, bytes: usize) -> u64 {
        mask(bytes / T::SIZE, |i| self.get::<T>(i).sign())
    }

    /// A vector whose first `count` lanes are `f` of their numbers; the rest is 0.
    pub fn from<T: Lane>(count: usize, mut f: impl FnMut(usize) -> T) -> Vector {
        let mut v = Vector::ZERO;
        for i in 0..count {
            v.set(i, f(i));
        }
        v
    }
}

/// The numbers below `count` for which `f` holds, as the bits of a mask.
pub(crate) fn mask(count: usize, f: impl Fn(usize) -> bool) -> u64 {
    (0..count).fold(0, |bits, i| bits | u64::from(f(i)) << i)
}
