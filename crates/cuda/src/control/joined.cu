// Reports the data error of the side that ran to the record around the branch.
extern "C" __global__ void kiln_joined(const kiln_errors* sides, kiln_errors* errors, int guarded) {
    for (int i = 0; i < 2; i++) {
        unsigned state = sides[i].state;
        if (state && state != 0xffffffffu) kiln_report(errors, state - 1, sides[i].index, sides[i].bound);
    }
}
