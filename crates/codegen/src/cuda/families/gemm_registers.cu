// Products whose left operand is made in registers, by a prologue, of what bulk copies bring.

// The elements of a register.
constexpr int EACH = 4 / sizeof(Elem);

// The place of an element of the left operand in a stage.
__device__ __forceinline__ const Raw* raw_place(const Raw* stage, int line, int k) {
    constexpr int ROW = 128 / sizeof(Raw), CHUNK = 16 / sizeof(Raw);
    const int row = A_ALONG_K ? line : k, column = A_ALONG_K ? k : line;
    const int chunk = column % ROW / CHUNK ^ row % 8;
    return stage + column / ROW * (A_ALONG_K ? BM : BK) * ROW + row * ROW + chunk * CHUNK + column % CHUNK;
}

// Reads what a thread's registers of 16 lines and TERMS terms are made of.
__device__ __forceinline__ void load_raw(Raw (&raw)[4][EACH], const Raw* stage, int line, int k) {
    const int lane = threadIdx.x % 32;
    if constexpr (sizeof(Raw) == 2) {
        const int part = lane / 8, row = lane % 8;
        const unsigned at = shared_address(raw_place(stage, line + part % 2 * 8 + (A_ALONG_K ? row : 0), k + part / 2 * 8 + (A_ALONG_K ? 0 : row)));
        unsigned words[4];
        if constexpr (A_ALONG_K)
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]) : "r"(at) : "memory");
        else
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]) : "r"(at) : "memory");
#pragma unroll
        for (int r = 0; r < 4; r++) {
            raw[r][0] = (Raw)(words[r] & 0xffff);
            raw[r][1] = (Raw)(words[r] >> 16);
        }
    } else {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const int row = line + lane / 4 + r % 2 * 8, term = k + r / 2 * (TERMS / 2) + lane % 4 * EACH;
            if constexpr (A_ALONG_K) {
                const auto all = kiln_load<EACH>(raw_place(stage, row, term));
#pragma unroll
                for (int x = 0; x < EACH; x++) raw[r][x] = all.v[x];
            } else {
#pragma unroll
                for (int x = 0; x < EACH; x++) raw[r][x] = *raw_place(stage, row, term + x);
            }
        }
    }
}

// Leaves the sums over first <= k < end of a warpgroup's rows, of a tile from row i0 on, in its registers. Other
// warpgroups multiply while this one makes its operand.
template <class Make>
__device__ __forceinline__ void multiply(Shared& shared, Ring<STAGES>& ring, Acc (&sums)[SUMS], Index first, Index end, Index i0, const Make& make) {
    const int lane = threadIdx.x % 32, line = (threadIdx.x / 128 - 1) * WM + threadIdx.x % 128 / 32 * 16;
#pragma unroll
    for (int x = 0; x < SUMS; x++) sums[x] = 0;
#pragma unroll 1
    for (Index k0 = first; k0 < end; k0 += BK) {
        wait(shared.barriers.full[ring.stage], ring.parity);
        const unsigned b = shared_address(shared.in[ring.stage].b);
        unsigned made[BK / TERMS][WM / 64][4];
#pragma unroll
        for (int k = 0; k < BK; k += TERMS) {
#pragma unroll
            for (int i = 0; i < WM / 64; i++) {
                Raw raw[4][EACH];
                load_raw(raw, shared.in[ring.stage].a, line + i * 64, k);
#pragma unroll
                for (int r = 0; r < 4; r++) {
                    const Index row = i0 + line + i * 64 + lane / 4 + r % 2 * 8;
                    const Index term = k0 + k + r / 2 * (TERMS / 2) + lane % 4 * EACH;
                    float x[EACH];
#pragma unroll
                    for (int e = 0; e < EACH; e++) {
                        x[e] = make(raw[r][e], row, term + e);
                        // Zeros make what a prologue makes of zeros, an infinity perhaps.
                        if (TAILS && term + e >= end) x[e] = 0;
                    }
                    made[k / TERMS][i][r] = narrow(x);
                }
            }
            begin_products(sums, made[k / TERMS]);
#pragma unroll
            for (int i = 0; i < WM / 64; i++)
                wgmma<1>(*(Acc(*)[BN / 2])(sums + i * BN / 2), made[k / TERMS][i], matrix<BN, BK, B_ALONG_K>(b, 0, k));
        }
        commit_products();
        finish_products<0>(sums, made);
        release(shared.barriers, ring.stage);
        ring.next();
    }
}
