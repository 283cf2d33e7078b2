/* pointwise.cu - the frame of every pointwise program. pointwise_program.c puts pointwise_math.h before it, and what
 * follows from the program: the types ms__pw_0 to ms__pw_3 of the inputs and
 * ms__pw_out, and ms__pw_value(), the result for one element.
 *
 * A thread computes four elements that follow each other. They are read and written at once where all addresses allow
 * it (args.is_aligned).
 */
#define MS__PW_WIDTH 4

struct ms__pw_args { /* as ms__pointwise_args in pointwise_program.h */
    ms__u64 inputs[4], output, n, is_aligned;
};

template <typename T> struct alignas(MS__PW_WIDTH * sizeof(T)) ms__pw_pack {
    T at[MS__PW_WIDTH];
};

template <typename T>
__device__ __forceinline__ ms__pw_pack<T> ms__pw_load(ms__u64 address, ms__u64 first, ms__u64 n, bool is_whole) {
    const T *data = (const T *)address + first;
    if (is_whole) return *(const ms__pw_pack<T> *)data;
    ms__pw_pack<T> pack = {};
    for (int i = 0; i < MS__PW_WIDTH && first + i < n; i++) pack.at[i] = data[i];
    return pack;
}

MS__KERNEL(ms_pointwise_kernel)(ms__pw_args args) {
    ms__u64 first = ((ms__u64)blockIdx.x * blockDim.x + threadIdx.x) * MS__PW_WIDTH;
    if (first >= args.n) return;
    bool is_whole = args.is_aligned != 0 && first + MS__PW_WIDTH <= args.n;
    ms__pw_pack<ms__pw_0> in0 = ms__pw_load<ms__pw_0>(args.inputs[0], first, args.n, is_whole);
    ms__pw_pack<ms__pw_1> in1 = ms__pw_load<ms__pw_1>(args.inputs[1], first, args.n, is_whole);
    ms__pw_pack<ms__pw_2> in2 = ms__pw_load<ms__pw_2>(args.inputs[2], first, args.n, is_whole);
    ms__pw_pack<ms__pw_3> in3 = ms__pw_load<ms__pw_3>(args.inputs[3], first, args.n, is_whole);
    ms__pw_pack<ms__pw_out> out;
    for (int i = 0; i < MS__PW_WIDTH; i++) out.at[i] = ms__pw_value(in0.at[i], in1.at[i], in2.at[i], in3.at[i]);
    ms__pw_out *to = (ms__pw_out *)args.output + first;
    if (is_whole) {
        *(ms__pw_pack<ms__pw_out> *)to = out;
    } else {
        for (int i = 0; i < MS__PW_WIDTH && first + i < args.n; i++) to[i] = out.at[i];
    }
}
