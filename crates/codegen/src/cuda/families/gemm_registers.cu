// Products whose left operand is made in registers, by a prologue, of what bulk copies bring.

// The elements of a register.
constexpr int EACH = 4 / sizeof(Elem);

// The bytes before an element of the left operand in a stage whose chunks are not permuted.
__device__ __forceinline__ unsigned straight(int line, int k) {
    constexpr int ROW = 128 / sizeof(Raw), BOX = (A_ALONG_K ? BM : BK) * 128;
    const int row = A_ALONG_K ? line : k, column = A_ALONG_K ? k : line;
    return column / ROW * BOX + row * 128 + column % ROW * sizeof(Raw);
}

// The same in a stage: rows permute their chunks of 16 bytes. Numbers without common bits may be permuted one by one.
__device__ __forceinline__ unsigned permuted(unsigned bytes) { return bytes ^ bytes >> 3 & 0x70; }

// The bytes before the first element that a thread reads of a warp's lines.
__device__ __forceinline__ unsigned bytes_of_lane(int line) {
    const int lane = threadIdx.x % 32, row = lane % 8, right = lane / 16 * 8;
    if constexpr (sizeof(Raw) > 2) return permuted(straight(line + lane / 4, lane % 4 * EACH));
    line += lane / 8 % 2 * 8;
    return permuted(A_ALONG_K ? straight(line + row, right) : straight(line, right + row));
}

// The address so many lines and terms, which the compiler knows, behind that of a thread's first element.
__device__ __forceinline__ unsigned behind(unsigned first, int lines, int k) {
    const unsigned bytes = permuted(straight(lines, k));
    return (first ^ bytes % 1024) + bytes / 1024 * 1024;
}

// Reads what a thread's registers of 16 lines and TERMS terms are made of: elements, or pairs of 16 bits.
constexpr int WORDS = sizeof(Raw) == 2 ? 1 : EACH;
__device__ __forceinline__ void load_raw(unsigned (&raw)[4][WORDS], unsigned first, int lines, int k) {
    const unsigned at = behind(first, lines, k);
    if constexpr (sizeof(Raw) == 2 && A_ALONG_K)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(raw[0][0]), "=r"(raw[1][0]), "=r"(raw[2][0]), "=r"(raw[3][0]) : "r"(at) : "memory");
    else if constexpr (sizeof(Raw) == 2)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(raw[0][0]), "=r"(raw[1][0]), "=r"(raw[2][0]), "=r"(raw[3][0]) : "r"(at) : "memory");
    else
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const int line = lines + r % 2 * 8, term = k + r / 2 * (TERMS / 2);
            const unsigned at = behind(first, line, term);
            if constexpr (A_ALONG_K && WORDS == 2)
                asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];" : "=r"(raw[r][0]), "=r"(raw[r][WORDS - 1]) : "r"(at) : "memory");
            else
#pragma unroll
                for (int x = 0; x < WORDS; x++)
                    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(raw[r][x]) : "r"(behind(first, line, term + x)) : "memory");
        }
}

// Element x of a register's.
__device__ __forceinline__ Raw element(const unsigned (&raw)[WORDS], int x) {
    const unsigned word = sizeof(Raw) == 2 ? raw[0] >> 16 * x : raw[x % WORDS];
    return *(const Raw*)&word;
}

// Makes a register of these lines and terms. Zeros outside of the operand would make what a prologue makes of zeros, an
// infinity perhaps.
template <class Make>
__device__ __forceinline__ unsigned make_register(const unsigned (&raw)[WORDS], Index line, Index term, Index end, const Make& make) {
    if constexpr (BY_PAIRS) {
        const unsigned made = make(raw[0], line, term);
        return !TAILS || term + 1 < end ? made : term < end ? made & 0xffff : 0;
    } else {
        float x[EACH];
#pragma unroll
        for (int e = 0; e < EACH; e++) x[e] = TAILS && term + e >= end ? 0 : make(element(raw, e), line, term + e);
        return narrow(x);
    }
}

// Leaves the sums over first <= k < end of a warpgroup's rows, of a tile from row i0 on, in its registers. Other
// warpgroups multiply while this one makes its operand.
template <class Make>
__device__ __forceinline__ void multiply(Shared& shared, Ring<STAGES>& ring, Acc (&sums)[SUMS], Index first, Index end, Index i0, const Make& make) {
    const int lane = threadIdx.x % 32, line = (threadIdx.x / 128 - 1) * WM + threadIdx.x % 128 / 32 * 16;
    unsigned bytes = bytes_of_lane(line);
    asm("" : "+r"(bytes)); // so that it is not computed again in each turn
#pragma unroll
    for (int x = 0; x < SUMS; x++) sums[x] = 0;
#pragma unroll 1
    for (Index k0 = first; k0 < end; k0 += BK) {
        wait(shared.barriers.full[ring.stage], ring.parity);
        const unsigned a = shared_address(shared.in[ring.stage].a) + bytes, b = shared_address(shared.in[ring.stage].b);
        unsigned made[BK / TERMS][WM / 64][4];
#pragma unroll
        for (int k = 0; k < BK; k += TERMS) {
#pragma unroll
            for (int i = 0; i < WM / 64; i++) {
                unsigned raw[4][WORDS];
                load_raw(raw, a, i * 64, k);
#pragma unroll
                for (int r = 0; r < 4; r++) {
                    const Index row = i0 + line + i * 64 + lane / 4 + r % 2 * 8;
                    const Index term = k0 + k + r / 2 * (TERMS / 2) + lane % 4 * EACH;
                    made[k / TERMS][i][r] = make_register(raw[r], row, term, end, make);
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
