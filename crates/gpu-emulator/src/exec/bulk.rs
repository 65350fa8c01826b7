//! Bulk copies (TMA), of bytes and of boxes of tensors.

use super::bulk_stores::Store;
use super::core::Core;
use super::elements::swizzle;
use super::im2col::{Im2col, Pixels};
use super::warp::Warp;
use super::{AccessKind, BLOCK_SHIFT, addresses, lanes_of};
use crate::code::Bulk;
use crate::fault::{FaultKind, Outcome, Raised};
use crate::lanes::Slot;
use crate::lanes::rounding::to_tf32;
use std::mem::offset_of;

/// The first word of every [`TensorMap`].
pub(crate) const TENSOR_MAGIC: u32 = 0x4b54_4d31;

/// A tensor as `cuTensorMapEncodeTiled` describes it, in the 128 opaque bytes of a `CUtensorMap`.
#[repr(C, align(64))]
#[derive(Copy, Clone, Debug)]
pub struct TensorMap {
    magic: u32,
    element: u8,
    rank: u8,
    /// 0: none, 1: 32 bytes, 2: 64 bytes, 3: 128 bytes.
    swizzle: u8,
    /// 1 if elements are rounded to TF32 as they are loaded.
    tf32: u8,
    base: u64,
    sizes: [u32; 5],
    /// Of im2col the channels and the pixels.
    box_sizes: [u16; 5],
    strides: [u64; 4],
    im2col: Im2col,
}

const _: () = assert!(size_of::<TensorMap>() == 128);

impl TensorMap {
    /// The map of a tensor at `base` with elements of `element` bytes. `sizes` and `box_sizes` begin with the fastest
    /// dimension; `strides` are in bytes and leave it out.
    ///
    /// # Errors
    /// If hardware does not allow the map.
    pub fn new(
        base: u64,
        element: usize,
        sizes: &[u64],
        strides: &[u64],
        box_sizes: &[u32],
        swizzle: u8,
    ) -> Result<TensorMap, String> {
        let rank = sizes.len();
        if !(1..=5).contains(&rank) || box_sizes.len() != rank || strides.len() + 1 != rank {
            return Err(format!("a tensor map of rank {rank}"));
        }
        if !base.is_multiple_of(16) || strides.iter().any(|s| s % 16 != 0) {
            return Err("the base and the strides of a tensor map are multiples of 16".into());
        }
        if box_sizes.iter().any(|&n| n == 0 || n > 256) {
            return Err("a box of a tensor map has 1 to 256 elements a dimension".into());
        }
        let row = box_sizes[0] as usize * element;
        let span = [usize::MAX, 32, 64, 128][swizzle as usize & 3];
        if !row.is_multiple_of(16) || row > span {
            return Err(format!("a box row of {row} bytes with a swizzle of {span}"));
        }
        let mut map = TensorMap {
            magic: TENSOR_MAGIC,
            element: element as u8,
            rank: rank as u8,
            swizzle,
            tf32: 0,
            base,
            sizes: [1; 5],
            box_sizes: [1; 5],
            strides: [0; 4],
            im2col: Im2col::default(),
        };
        for i in 0..rank {
            map.sizes[i] = sizes[i] as u32;
            map.box_sizes[i] = box_sizes[i] as u16;
        }
        map.strides[..rank - 1].copy_from_slice(strides);
        Ok(map)
    }

    /// The map of images at `base`, of dimensions C, W, H, D and N, whose pixels are copied; the rest as for
    /// [`TensorMap::new`].
    ///
    /// # Errors
    /// If hardware does not allow the map.
    pub fn im2col(
        base: u64,
        element: usize,
        sizes: &[u64],
        strides: &[u64],
        pixels: Pixels,
        swizzle: u8,
    ) -> Result<TensorMap, String> {
        let im2col = Im2col::new(sizes, strides, pixels)?;
        let [channels, count] = pixels.counts;
        let mut boxes = vec![1; sizes.len()];
        boxes[0] = channels;
        let mut map = TensorMap::new(base, element, sizes, strides, &boxes, swizzle)?;
        map.box_sizes[1] = count as u16;
        map.im2col = im2col;
        Ok(map)
    }

    /// The same map of f32, which are rounded to TF32 as they are loaded.
    #[must_use]
    pub fn rounding_to_tf32(mut self) -> TensorMap {
        assert_eq!(self.element, 4, "only f32 is rounded to TF32");
        self.tf32 = 1;
        self
    }

    /// The map as a kernel's parameter.
    pub fn to_bytes(&self) -> [u8; 128] {
        let mut bytes = [0; 128];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(offset_of!(TensorMap, magic), &self.magic.to_ne_bytes());
        put(
            offset_of!(TensorMap, element),
            &[self.element, self.rank, self.swizzle, self.tf32],
        );
        put(offset_of!(TensorMap, base), &self.base.to_ne_bytes());
        for i in 0..5 {
            let at = offset_of!(TensorMap, sizes) + 4 * i;
            put(at, &self.sizes[i].to_ne_bytes());
            let at = offset_of!(TensorMap, box_sizes) + 2 * i;
            put(at, &self.box_sizes[i].to_ne_bytes());
        }
        for (i, stride) in self.strides.iter().enumerate() {
            put(
                offset_of!(TensorMap, strides) + 8 * i,
                &stride.to_ne_bytes(),
            );
        }
        put(offset_of!(TensorMap, im2col), &self.im2col.to_bytes());
        bytes
    }

    fn bytes(&self) -> usize {
        self.box_sizes
            .iter()
            .map(|&n| n as usize)
            .product::<usize>()
            * self.element as usize
    }

    /// The address of element `at`, if it lies inside.
    fn address(&self, at: &[i64]) -> Option<u64> {
        let mut address = self.base + (at[0] * self.element as i64) as u64;
        for (i, &x) in at.iter().enumerate() {
            if x < 0 || x >= self.sizes[i] as i64 {
                return None;
            }
            if i > 0 {
                address += x as u64 * self.strides[i - 1];
            }
        }
        Some(address)
    }
}

/// The elements that a copy of a tensor map moves.
enum Elements {
    /// Those of the box at a corner.
    Box(Vec<i64>),
    /// Those of pixels.
    Pixels(Vec<[i64; 5]>),
}

impl Elements {
    /// The elements from a corner on; `offsets` are those of an im2col copy.
    fn new(map: &TensorMap, corner: Vec<i64>, offsets: Option<Vec<i64>>) -> Outcome<Elements> {
        match (map.im2col.is_used(), offsets) {
            (false, None) => Ok(Elements::Box(corner)),
            (true, Some(offsets)) => {
                let images = (&map.sizes, map.box_sizes[1] as usize);
                let pixels = map.im2col.pixels(images, &corner, &offsets);
                let wrong = |why| Raised::new(FaultKind::Misuse, why);
                Ok(Elements::Pixels(pixels.map_err(wrong)?))
            }
            _ => {
                let why = "a copy by tiles with a map for im2col, or the other way round";
                Err(Raised::new(FaultKind::Misuse, why))
            }
        }
    }

    /// The coordinates of an element.
    fn at(&self, map: &TensorMap, element: usize) -> [i64; 5] {
        let channels = map.box_sizes[0] as usize;
        match self {
            Elements::Pixels(pixels) => {
                let mut at = pixels[element / channels];
                at[0] += (element % channels) as i64;
                at
            }
            Elements::Box(corner) => {
                let (mut rest, mut at) = (element, [0i64; 5]);
                for (d, x) in at.iter_mut().enumerate().take(corner.len()) {
                    *x = corner[d] + (rest % map.box_sizes[d] as usize) as i64;
                    rest /= map.box_sizes[d] as usize;
                }
                at
            }
        }
    }
}

impl Core<'_> {
    /// Executes a bulk copy, for each lane of the mask.
    pub fn bulk(&mut self, warp: &mut Warp, op: &Bulk, mask: u32) -> Outcome<()> {
        for l in lanes_of(mask) {
            self.bulk_of_lane(warp, op, l).map_err(|e| e.of_lane(l))?;
        }
        Ok(())
    }

    fn bulk_of_lane(&mut self, warp: &mut Warp, op: &Bulk, l: usize) -> Outcome<()> {
        match op {
            Bulk::Commit => {
                warp.stores.groups[l] += 1;
                return Ok(());
            }
            Bulk::Wait { keep } => return self.stores_end(warp, l, *keep),
            _ => {}
        }
        let registers = &warp.registers;
        let coordinate = |slot: &Slot| registers.word(*slot)[l] as i32 as i64;
        match op {
            Bulk::Load {
                to,
                from,
                bytes,
                barrier,
            } => {
                let to = Self::to_shared(addresses(registers, *to)[l]);
                let from = addresses(registers, *from)[l];
                let len = registers.word(*bytes)[l] as usize;
                let barrier = addresses(registers, *barrier)[l];
                if !(to | from | len as u64).is_multiple_of(16) {
                    let why = "a bulk copy whose addresses and size are not multiples of 16";
                    return Err(Raised::new(FaultKind::Misaligned, why));
                }
                if let Some(traffic) = &mut self.traffic {
                    traffic.bulk_bytes += len as u64;
                }
                let start = self.shared_bounds(to, len, "bulk copy")?;
                let source = self.global_access(from, len, "bulk copy", AccessKind::Read)?;
                self.bulk_begins(warp.id, start, len, barrier)?;
                // SAFETY: both ranges were checked.
                unsafe { std::ptr::copy_nonoverlapping(source, self.shared_pointer(start), len) };
                self.mbarrier_update(barrier, 0, -(len as i64))
            }
            Bulk::LoadTensor {
                to,
                map,
                at,
                offsets,
                barrier,
                blocks,
            } => {
                let to = Self::to_shared(addresses(registers, *to)[l]);
                let corner: Vec<i64> = at.iter().map(coordinate).collect();
                let map = addresses(registers, *map)[l];
                let barrier = Self::to_shared(addresses(registers, *barrier)[l]);
                let map = self.tensor_map(map, corner.len())?;
                if let Some(traffic) = &mut self.traffic {
                    traffic.bulk_bytes += map.bytes() as u64;
                }
                let offset = |slot: &Slot| i64::from(registers.word(*slot)[l] as u16);
                let offsets = offsets.as_ref().map(|all| all.iter().map(offset).collect());
                let from = Elements::new(&map, corner, offsets)?;
                let Some(blocks) = blocks else {
                    return self.tensor_load(warp.id, &map, &from, [to, barrier]);
                };
                let blocks = registers.word(*blocks)[l] & 0xffff;
                for rank in lanes_of(blocks) {
                    let block = (rank as u64 + 1) << BLOCK_SHIFT;
                    let there = [to, barrier].map(|at| block | at & ((1 << BLOCK_SHIFT) - 1));
                    self.tensor_load(warp.id, &map, &from, there)?;
                }
                Ok(())
            }
            Bulk::StoreTensor { from, map, at } => {
                let from = Self::to_shared(addresses(registers, *from)[l]);
                let corner: Vec<i64> = at.iter().map(coordinate).collect();
                let map = addresses(registers, *map)[l];
                let map = self.tensor_map(map, corner.len())?;
                if map.tf32 != 0 {
                    let why = "a bulk copy to global memory by a tensor map that rounds to TF32";
                    return Err(Raised::new(FaultKind::Misuse, why));
                }
                let (from, len) = (self.tensor_tile(&map, from)?, map.bytes());
                if let Some(races) = &mut self.races {
                    races.outgoing_begins(warp.id, from, len)?;
                }
                let (lane, group) = (l, warp.stores.groups[l]);
                warp.stores.pending.push(Store {
                    lane,
                    group,
                    from,
                    len,
                });
                let to = Elements::new(&map, corner, None)?;
                self.tensor_copy(&map, from, &to, false)
            }
            Bulk::Commit | Bulk::Wait { .. } => unreachable!("these name no memory"),
        }
    }

    /// Ends the stores of a lane but those of its `keep` newest committed groups.
    fn stores_end(&mut self, warp: &mut Warp, lane: usize, keep: u32) -> Outcome<()> {
        let open = warp.stores.groups[lane];
        let is_over = |s: &mut Store| s.lane == lane && s.group + keep < open;
        for store in warp.stores.pending.extract_if(.., is_over) {
            if let Some(races) = &mut self.races {
                races.outgoing_ends(warp.id, store.from, store.len)?;
            }
        }
        Ok(())
    }

    /// Loads elements to an address in shared memory, and signals an mbarrier.
    fn tensor_load(
        &mut self,
        warp: usize,
        map: &TensorMap,
        from: &Elements,
        [to, barrier]: [u64; 2],
    ) -> Outcome<()> {
        let start = self.tensor_tile(map, to)?;
        self.bulk_begins(warp, start, map.bytes(), barrier)?;
        self.tensor_copy(map, start, from, true)?;
        self.mbarrier_update(barrier, 0, -(map.bytes() as i64))
    }

    fn bulk_begins(&mut self, warp: usize, at: usize, len: usize, barrier: u64) -> Outcome<()> {
        let barrier = self.mbarrier_at(barrier)?;
        if self.unfenced.iter().any(|(at, _)| *at == barrier) {
            let why = "a bulk copy that signals an mbarrier with no fence.mbarrier_init after its initialisation";
            return Err(Raised::new(FaultKind::MissingFence, why));
        }
        self.note_remote(warp, at);
        match &mut self.races {
            Some(races) => {
                races.mbarrier_use(warp, barrier)?;
                races.bulk_begins(warp, at, len, barrier)
            }
            None => Ok(()),
        }
    }

    fn tensor_map(&mut self, address: u64, rank: usize) -> Outcome<TensorMap> {
        let wrong = |why: String| Raised::new(FaultKind::Misuse, why);
        let (space, at) = Self::narrow(address);
        let bytes = match space {
            crate::ptx::Space::Param if at as usize + 128 <= self.parameters.len() => {
                self.parameters[at as usize..].as_ptr()
            }
            _ => self.global_access(at, 128, "tensor map", AccessKind::Read)? as *const u8,
        };
        // SAFETY: 128 readable bytes; every bit pattern is a `TensorMap`.
        let map: TensorMap = unsafe { std::ptr::read_unaligned(bytes.cast()) };
        if map.magic != TENSOR_MAGIC || !address.is_multiple_of(64) {
            return Err(wrong(format!("no tensor map at {address:#x}")));
        }
        if map.rank as usize != rank {
            return Err(wrong(format!(
                "a tensor map of rank {} for {rank} coordinates",
                map.rank
            )));
        }
        Ok(map)
    }

    /// Checks the tile at `address` in shared memory.
    fn tensor_tile(&mut self, map: &TensorMap, address: u64) -> Outcome<usize> {
        Self::aligned(address, 128, "a tile in shared memory")?;
        self.shared_bounds(address, map.bytes(), "tensor copy")
    }

    /// Copies elements; those outside the tensor are zeros.
    fn tensor_copy(
        &mut self,
        map: &TensorMap,
        start: usize,
        elements: &Elements,
        loads: bool,
    ) -> Outcome<()> {
        let (element, what) = (map.element as usize, "tensor copy");
        for i in 0..map.bytes() / element {
            let at = elements.at(map, i);
            let shared = self.shared_pointer(swizzle(start + i * element, map.swizzle));
            let address = map.address(&at[..map.rank as usize]);
            // SAFETY: the tile and each element were checked; a swizzle stays inside the aligned tile.
            unsafe {
                match address {
                    Some(address) if loads => {
                        let from = self.global_access(address, element, what, AccessKind::Read)?;
                        std::ptr::copy_nonoverlapping(from, shared, element);
                        if map.tf32 != 0 {
                            let word: *mut u32 = shared.cast();
                            word.write_unaligned(to_tf32(f32::from_bits(word.read_unaligned())));
                        }
                    }
                    Some(address) => {
                        if let Some(traffic) = &mut self.traffic {
                            traffic.bulk_stored_bytes += element as u64;
                        }
                        let to = self.global_access(address, element, what, AccessKind::Write)?;
                        std::ptr::copy_nonoverlapping(shared, to, element);
                    }
                    None if loads => std::ptr::write_bytes(shared, 0, element),
                    None => {}
                }
            }
        }
        Ok(())
    }
}
