// Term k of a sum; 0 if an operand has no element there.
template <class A, class B>
__device__ __forceinline__ Acc term(const A& a, const typename A::Line& row, const B& b, const typename B::Line& column, Index k) {
    return a.exists(row, k) && b.exists(column, k) ? load(a.at(row, k)) * load(b.at(column, k)) : 0;
}

