//! The pixels that copies by tensor maps for im2col bring: what a convolution's filter meets at its positions.

/// The part of a tensor map that `cuTensorMapEncodeIm2col` alone describes: the path through the W, H and D
/// dimensions. No dimensions: the map is for tiles.
#[repr(C)]
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Im2col {
    lower: [i16; 3],
    upper: [i16; 3],
    steps: [u8; 3],
    dimensions: u8,
}

/// The description of the pixels that an im2col copy brings, as in `cuTensorMapEncodeIm2col`. The numbers of spatial
/// dimensions begin with W.
#[derive(Copy, Clone, Debug)]
pub struct Pixels<'a> {
    /// The lower corner of the box that pixels without an offset lie in.
    pub lower: &'a [i32],
    /// The upper corner, from the last pixel on.
    pub upper: &'a [i32],
    /// The channels of a pixel, and the pixels of a copy.
    pub counts: [u32; 2],
    /// The traversal strides.
    pub steps: &'a [u32],
}

/// The bits of a corner, and of an offset, for one to three spatial dimensions.
const BITS: [u32; 3] = [16, 8, 5];

impl Im2col {
    /// The path through images of dimensions C, W, H, D and N, with strides in bytes.
    ///
    /// # Errors
    /// If hardware does not allow it.
    pub(super) fn new(sizes: &[u64], strides: &[u64], pixels: Pixels) -> Result<Im2col, String> {
        let Pixels {
            lower,
            upper,
            counts: [channels, count],
            steps,
        } = pixels;
        let spatial = sizes.len().wrapping_sub(2);
        if !(1..=3).contains(&spatial) || [lower.len(), upper.len(), steps.len()] != [spatial; 3] {
            return Err(format!("im2col of a tensor of rank {}", sizes.len()));
        }
        if sizes.contains(&0) || sizes.iter().any(|n| *n > 1 << 32) {
            return Err("a dimension of im2col has 1 to 2^32 elements".into());
        }
        if strides.iter().any(|s| *s >= 1 << 40) {
            return Err("a stride of im2col is less than 2^40 bytes".into());
        }
        if channels == 0 || channels > 256 || count == 0 || count > 1024 {
            return Err(format!("im2col of {count} pixels of {channels} channels"));
        }
        let far = 1 << (BITS[spatial - 1] - 1);
        let mut path = Im2col {
            dimensions: spatial as u8,
            ..Im2col::default()
        };
        for i in 0..spatial {
            let (from, to, step) = (lower[i], upper[i], steps[i]);
            if [from, to].iter().any(|c| !(-far..far).contains(c)) {
                let range = format!("[{}, {}]", -far, far - 1);
                return Err(format!("corners {from} and {to} of im2col, not in {range}"));
            }
            if i64::from(from) > sizes[i + 1] as i64 - 1 + i64::from(to) {
                return Err("a box of im2col without pixels".into());
            }
            if !(1..=8).contains(&step) {
                return Err(format!("a traversal stride of {step}, not 1 to 8"));
            }
            path.lower[i] = from as i16;
            path.upper[i] = to as i16;
            path.steps[i] = step as u8;
        }
        Ok(path)
    }

    /// True if the map is for im2col.
    pub(super) fn is_used(&self) -> bool {
        self.dimensions > 0
    }

    /// The coordinates of `count` pixels of images of these sizes from one on, each moved by `offsets`.
    ///
    /// # Errors
    /// If hardware does not allow the copy.
    pub(super) fn pixels(
        &self,
        (sizes, count): (&[u32; 5], usize),
        corner: &[i64],
        offsets: &[i64],
    ) -> Result<Vec<[i64; 5]>, String> {
        let spatial = self.dimensions as usize;
        if offsets.len() != spatial {
            return Err(format!("{} offsets of {spatial} dimensions", offsets.len()));
        }
        let most = (1i64 << BITS[spatial - 1]) - 1;
        if let Some(offset) = offsets.iter().find(|o| **o > most) {
            return Err(format!("an im2col offset of {offset}, of at most {most}"));
        }
        let last = |d: usize| i64::from(sizes[d + 1]) - 1 + i64::from(self.upper[d]);
        let lower = |d: usize| i64::from(self.lower[d]);
        let inside = |d: usize| (lower(d)..=last(d)).contains(&corner[d + 1]);
        if !(0..spatial).all(inside) {
            return Err(format!(
                "an im2col copy from {corner:?}, outside of its box"
            ));
        }
        let mut pixel = [0; 5];
        pixel[..corner.len()].copy_from_slice(corner);
        let mut all = Vec::with_capacity(count);
        for _ in 0..count {
            let mut at = pixel;
            for (x, offset) in at[1..].iter_mut().zip(offsets) {
                *x += offset;
            }
            all.push(at);
            let mut d = 0;
            while d < spatial {
                pixel[d + 1] += i64::from(self.steps[d]);
                if pixel[d + 1] <= last(d) {
                    break;
                }
                pixel[d + 1] = lower(d);
                d += 1;
            }
            if d == spatial {
                pixel[d + 1] += 1;
            }
        }
        Ok(all)
    }

    pub(super) fn to_bytes(self) -> [u8; size_of::<Im2col>()] {
        let corners = self.lower.iter().chain(&self.upper);
        let corners = corners.flat_map(|c| c.to_ne_bytes());
        let steps = self.steps.into_iter().chain([self.dimensions]);
        let mut bytes = [0; size_of::<Im2col>()];
        for (to, from) in bytes.iter_mut().zip(corners.chain(steps)) {
            *to = from;
        }
        bytes
    }
}
