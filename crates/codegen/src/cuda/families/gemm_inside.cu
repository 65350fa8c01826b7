// The sum of a row and a column over the terms of which both operands have an element. In a tile's sum, those
// beyond the edges of one count with a zero, of which an infinite factor makes NaN.
template <class A, class B>
__device__ __forceinline__ Acc sum_inside(const A& a, const B& b, Index i, Index j, Index first, Index end) {
    const auto row = a.line(i);
    const auto column = b.line(j);
    Acc sum = 0;
#pragma unroll 1
    for (Index k = first; k < end && sum == sum; k++)
        if (a.exists(row, k) && b.exists(column, k)) sum += load(a.at(row, k)) * load(b.at(column, k));
    return sum;
}
