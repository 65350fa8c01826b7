// Stores of a warp's accumulators by TMA, in boxes of 16 rows of 128 bytes. The warp's staging buffer holds two: one is filled
// while TMA copies the other. Chunks of 16 bytes are permuted as tensor maps expect, without bank conflicts. The asm has
// no memory clobbers, which lets the compiler load the operands of epilogues meanwhile.

constexpr unsigned BOX_BYTES = 16 * 128;
static_assert(sizeof(StagingBuffer) == 2 * BOX_BYTES, "two boxes fit");

// The first box of a warp that multiplies; the other follows.
__device__ __forceinline__ unsigned first_box(const StagingBuffer* staging) { return shared_address(staging) + (warp_index() - 4) * 2 * BOX_BYTES; }

// True in one thread of a warp, always the same: the thread that begins a copy must wait for it.
__device__ __forceinline__ bool is_elected() {
    unsigned elected;
    asm volatile("{.reg .b32 lane; .reg .pred p; elect.sync lane|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(elected));
    return elected;
}

__device__ __forceinline__ void sync_warp() { asm volatile("bar.warp.sync 0xffffffff;"); }

// Waits until the box before the last has been copied. The next one takes its memory.
__device__ __forceinline__ void claim_box() {
    if (is_elected()) asm volatile("cp.async.bulk.wait_group.read 1;");
    sync_warp();
}

// Waits until the last box has been copied.
__device__ __forceinline__ void finish_boxes() {
    if (is_elected()) asm volatile("cp.async.bulk.wait_group.read 0;");
}

// Stores 16 rows and 32 columns of 16-bit elements to half a box. `pairs` are neighbours in each 8 columns, then 8 rows.
__device__ __forceinline__ void fill_box(unsigned box, int half, const unsigned (&pairs)[8]) {
    const int lane = threadIdx.x % 32;
    const unsigned at = box + lane % 16 * 128 + (lane / 16 ^ lane % 8) * 16;
#pragma unroll
    for (int x = 0; x < 2; x++)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                     ::"r"(at ^ (half * 4 + x * 2) * 16), "r"(pairs[4 * x]), "r"(pairs[4 * x + 1]), "r"(pairs[4 * x + 2]), "r"(pairs[4 * x + 3]));
}

__device__ __forceinline__ unsigned bits(float x) { return __float_as_uint(x); }
__device__ __forceinline__ unsigned bits(int x) { return x; }

// Stores 32-bit elements to a box. Odd rows store another chunk than even ones at a time, to avoid bank conflicts.
template <class T> __device__ __forceinline__ void fill_box(unsigned box, int, const kiln_vec<T, 2> (&pairs)[8]) {
    const int lane = threadIdx.x % 32, row = lane / 4;
    const bool odd = row % 2;
    const unsigned at = box + row * 128 + ((lane % 4 / 2 ^ row ^ odd * 4) * 16 + lane % 2 * 8);
#pragma unroll
    for (int x = 0; x < 8; x++) {
        const kiln_vec<T, 2> even_pair = pairs[x], odd_pair = pairs[x ^ 4];
        asm volatile("st.shared.v2.b32 [%0], {%1, %2};"
                     ::"r"((at ^ x / 2 * 32) + x % 2 * 8 * 128), "r"(bits(odd ? odd_pair.v[0] : even_pair.v[0])), "r"(bits(odd ? odd_pair.v[1] : even_pair.v[1])));
    }
}

// Begins to copy the box that all threads of the warp have filled, and swaps the boxes.
template <class Copy> __device__ __forceinline__ void copy_box(unsigned& box, unsigned& other, const Copy& copy) {
    const unsigned filled = box;
    asm volatile("fence.proxy.async.shared::cta;");
    sync_warp();
    if (is_elected()) {
        copy(filled);
        asm volatile("cp.async.bulk.commit_group;");
    }
    box = other;
    other = filled;
}
