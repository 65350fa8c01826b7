//! Copies by tensor maps for im2col.

use crate::support::Gpu;
use kiln_gpu_emulator::{Fault, Pixels, TensorMap};

/// Copies pixels of images of 4-byte channels to shared memory, and from there to `out`.
const KERNEL: &str = "
.version 8.0
.target sm_90a
.address_size 64
.visible .entry copy(.param .align 64 .b8 map[128], .param .u64 out, .param .u32 words, .param .u32 first,
    .param .u32 w, .param .u32 h, .param .u32 n, .param .u16 right, .param .u16 down)
{
    .reg .pred %p<3>;
    .reg .b16 %h<3>;
    .reg .b32 %r<12>;
    .reg .b64 %d<5>;
    .shared .align 128 .b8 tile[8192];
    .shared .align 8 .b8 barrier[8];
    mov.b64 %d1, map;
    cvta.param.u64 %d1, %d1;
    ld.param.u64 %d2, [out];
    ld.param.u32 %r1, [words];
    ld.param.u32 %r2, [first];
    ld.param.u32 %r3, [w];
    ld.param.u32 %r4, [h];
    ld.param.u32 %r5, [n];
    ld.param.u16 %h1, [right];
    ld.param.u16 %h2, [down];
    mov.u32 %r6, tile;
    mov.u32 %r7, barrier;
    shl.b32 %r8, %r1, 2;
    mbarrier.init.shared.b64 [%r7], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r7], %r8;
    cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%r6], [%d1, {%r2, %r3, %r4, %r5}], [%r7], {%h1, %h2};
WAIT:
    mbarrier.try_wait.parity.shared.b64 %p1, [%r7], 0;
    @!%p1 bra WAIT;
    mov.u32 %r9, 0;
NEXT:
    ld.shared.u32 %r10, [%r6];
    st.global.u32 [%d2], %r10;
    add.s32 %r6, %r6, 4;
    add.s64 %d2, %d2, 4;
    add.s32 %r9, %r9, 1;
    setp.lt.u32 %p2, %r9, %r1;
    @%p2 bra NEXT;
    ret;
}
";

/// Images of C, W, H and N elements, whose rows have a pixel more than belongs to them.
#[derive(Clone)]
struct Images {
    sizes: [i64; 4],
    lower: [i32; 2],
    upper: [i32; 2],
    steps: [u32; 2],
    counts: [u32; 2],
}

impl Images {
    fn strides(&self) -> [u64; 3] {
        let [c, w, h, _] = self.sizes.map(|n| n as u64);
        let row = 4 * c * (w + 1);
        [4 * c, row, row * h]
    }

    fn map(&self, base: u64) -> Result<TensorMap, String> {
        let pixels = Pixels {
            lower: &self.lower,
            upper: &self.upper,
            counts: self.counts,
            steps: &self.steps,
        };
        let sizes = self.sizes.map(|n| n as u64);
        TensorMap::im2col(base, 4, &sizes, &self.strides(), pixels, 0)
    }

    /// The number at a place: 0 outside.
    fn number(&self, at: [i64; 4]) -> i32 {
        let inside = at.iter().zip(self.sizes).all(|(x, n)| (0..n).contains(x));
        let [c, w, h, n] = at;
        let place = ((n * self.sizes[2] + h) * (self.sizes[1] + 1) + w) * self.sizes[0] + c;
        if inside { place as i32 + 1 } else { 0 }
    }

    /// The elements that a copy from a pixel on brings.
    fn copied(&self, first: i64, at: [i64; 3], offsets: [i64; 2]) -> Result<Vec<i32>, Box<Fault>> {
        let mut gpu = Gpu::from_text(KERNEL);
        let count = (self.strides()[2] as i64 / 4 * self.sizes[3]) as i32;
        let values: Vec<u8> = (1..=count).flat_map(i32::to_le_bytes).collect();
        let base = gpu.memory.allocate(values.len());
        gpu.memory.write(base, &values).unwrap();
        gpu.bytes(&self.map(base).unwrap().to_bytes(), 64);
        let words = self.counts[0] * self.counts[1];
        let out = gpu.empty::<i32>(words as usize);
        gpu.number(words.to_le_bytes());
        for number in [first, at[0], at[1], at[2]] {
            gpu.number((number as i32).to_le_bytes());
        }
        for offset in offsets {
            gpu.number((offset as u16).to_le_bytes());
        }
        gpu.run("copy", [1; 3], 1, 0)?;
        Ok(gpu.read(out, words as usize))
    }

    /// The same by the positions of a filter.
    fn expected(&self, first: i64, at: [i64; 3], offsets: [i64; 2]) -> Vec<i32> {
        let along = |d: usize| {
            let last = self.sizes[d + 1] - 1 + i64::from(self.upper[d]);
            (i64::from(self.lower[d])..=last).step_by(self.steps[d] as usize)
        };
        let mut all = Vec::new();
        for n in 0.. {
            all.extend(along(1).flat_map(|h| along(0).map(move |w| [w, h, n])));
            let from = all.iter().position(|p| *p == at);
            let some = from.map(|from| &all[from..]).unwrap_or_default();
            if some.len() >= self.counts[1] as usize {
                let pixels = some[..self.counts[1] as usize].iter();
                let element = |[w, h, n]: &[i64; 3], c: i64| {
                    self.number([first + c, w + offsets[0], h + offsets[1], *n])
                };
                let channels = 0..i64::from(self.counts[0]);
                return pixels
                    .flat_map(|p| channels.clone().map(move |c| element(p, c)))
                    .collect();
            }
        }
        unreachable!("there are images without end, of zeros")
    }
}

/// Filters of 3 by 2 taps with padding.
const PADDED: Images = Images {
    sizes: [8, 7, 5, 2],
    lower: [-1, -2],
    upper: [-1, 1],
    steps: [1, 1],
    counts: [8, 64],
};

#[test]
fn pixels_are_those_of_a_filter() {
    let strided = Images {
        steps: [2, 3],
        counts: [4, 20],
        ..PADDED
    };
    for (images, places) in [
        (PADDED, vec![[-1, -2, 0], [3, 4, 0], [5, 5, 1], [0, 0, 3]]),
        (strided, vec![[-1, -2, 0], [3, 1, 1], [5, 4, 1]]),
    ] {
        for at in places {
            for (first, offsets) in [(0, [0, 0]), (4, [2, 1]), (8, [0, 1]), (0, [255, 255])] {
                let got = images.copied(first, at, offsets).unwrap();
                assert_eq!(
                    got,
                    images.expected(first, at, offsets),
                    "{at:?} {offsets:?}"
                );
            }
        }
    }
}

#[test]
fn copies_that_hardware_does_not_allow_are_faults() {
    let cases = [
        ([-2, 0, 0], [0, 0], "outside of its box"),
        ([6, 0, 0], [0, 0], "outside of its box"),
        ([0, 6, 0], [0, 0], "outside of its box"),
        (
            [0, 0, 0],
            [256, 0],
            "an im2col offset of 256, of at most 255",
        ),
    ];
    for (at, offsets, why) in cases {
        let fault = PADDED.copied(0, at, offsets).unwrap_err().to_string();
        assert!(fault.contains(why), "{fault}");
    }
}

#[test]
fn maps_that_hardware_does_not_allow_are_refused() {
    let check = |change: &dyn Fn(&mut Images)| {
        let mut images = PADDED;
        change(&mut images);
        images.map(1 << 20)
    };
    assert!(check(&|_| ()).is_ok());
    assert!(check(&|i| (i.lower, i.upper) = ([-128, 0], [127, 0])).is_ok());
    let wrong: [&dyn Fn(&mut Images); 11] = [
        &|i| i.lower[0] = -129,
        &|i| i.upper[1] = 128,
        // No pixel.
        &|i| i.lower[0] = 6,
        &|i| i.upper[1] = -7,
        &|i| i.steps[0] = 0,
        &|i| i.steps[1] = 9,
        &|i| i.counts[0] = 260,
        &|i| i.counts[1] = 1025,
        &|i| i.counts[1] = 0,
        // A stride of 28 bytes.
        &|i| i.sizes[0] = 7,
        &|i| i.sizes[3] = 0,
    ];
    for (i, change) in wrong.iter().enumerate() {
        assert!(check(change).is_err(), "{i}");
    }
}
