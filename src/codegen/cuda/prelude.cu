typedef unsigned char u8;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
// 16-bit floats in memory; in registers they are a float.
struct __align__(2) bf16 { unsigned short bits; };
struct __align__(2) f16 { unsigned short bits; };

#define DEVICE __device__ __forceinline__
#define INFINITE __int_as_float(0x7f800000)
#define NOT_A_NUMBER __int_as_float(0x7fc00000)

// ---- elements as they are in memory and in registers
DEVICE float wide(float x) { return x; }
DEVICE double wide(double x) { return x; }
DEVICE int wide(int x) { return x; }
DEVICE bool wide(u8 x) { return x != 0; }
DEVICE float wide(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
DEVICE float wide(f16 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
DEVICE bf16 to_bf16(float x) { bf16 y; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); return y; }
DEVICE f16 to_f16(float x) { f16 y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); return y; }
DEVICE void put(float *p, float x) { *p = x; }
DEVICE void put(double *p, double x) { *p = x; }
DEVICE void put(int *p, int x) { *p = x; }
DEVICE void put(u8 *p, bool x) { *p = x; }
DEVICE void put(bf16 *p, float x) { *p = to_bf16(x); }
DEVICE void put(f16 *p, float x) { *p = to_f16(x); }

// N neighbouring elements at once, of 16 bytes at most; the address is a multiple of their size.
template <class T, int N> struct __align__(sizeof(T) * N) Pack { T of[N]; };

DEVICE int to_int(float x) { return __float2int_rz(x); }
DEVICE int to_int(double x) { return x != x ? 0 : __double2int_rz(x); }

// ---- arithmetic. Maxima and minima of what holds a NaN are NaN.
DEVICE float larger(float a, float b) { return a > b || a != a ? a : b; }
DEVICE float smaller(float a, float b) { return a < b || a != a ? a : b; }
DEVICE double larger(double a, double b) { return a > b || a != a ? a : b; }
DEVICE double smaller(double a, double b) { return a < b || a != a ? a : b; }
DEVICE int larger(int a, int b) { return a > b ? a : b; }
DEVICE int smaller(int a, int b) { return a < b ? a : b; }
DEVICE float sign_of(float x) { return x > 0 ? 1.f : x < 0 ? -1.f : x; }
DEVICE double sign_of(double x) { return x > 0 ? 1. : x < 0 ? -1. : x; }
DEVICE int sign_of(int x) { return (x > 0) - (x < 0); }
DEVICE float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
DEVICE double sigmoid(double x) { return 1. / (1. + exp(-x)); }
DEVICE float softplus(float x) { return x != x ? x : fmaxf(x, 0.f) + log1pf(expf(-fabsf(x))); }
DEVICE double softplus(double x) { return x != x ? x : fmax(x, 0.) + log1p(exp(-fabs(x))); }
DEVICE bool finite_number(float x) { return fabsf(x) < INFINITE; }
DEVICE bool finite_number(double x) { return fabs(x) < (double)INFINITE; }
DEVICE float modulo(float a, float b) { return a - b * floorf(a / b); }
DEVICE double modulo(double a, double b) { return a - b * floor(a / b); }
DEVICE int floor_div(int a, int b) {
    if (b == 0) return 0;
    i64 q = (i64)a / b;
    return (int)(q - (q * b != a && ((a ^ b) < 0)));
}
DEVICE int modulo(int a, int b) { return b == 0 ? 0 : (int)((u32)a - (u32)b * (u32)floor_div(a, b)); }
DEVICE int power(int x, int n) {
    if (n < 0) return x == 1 ? 1 : x == -1 ? (n & 1 ? -1 : 1) : 0;
    u32 y = 1, base = (u32)x;
    for (; n; n >>= 1, base *= base) if (n & 1) y *= base;
    return (int)y;
}

// An index that must be in 0..size; the first one that is not is left in the status cell, and 0 stands for it.
DEVICE int checked(int i, int size, u32 site, u64 *status) {
    if ((u32)i < (u32)size) return i;
    atomicCAS(status, 0ull, (u64)(site + 1) << 32 | (u32)i);
    return 0;
}

// ---- combining the values of all threads of a team, in an order that depends on the team alone
struct Sum { template <class T> static DEVICE T of(T a, T b) { return a + b; } };
struct Prod { template <class T> static DEVICE T of(T a, T b) { return a * b; } };
struct Max { template <class T> static DEVICE T of(T a, T b) { return larger(a, b); } };
struct Min { template <class T> static DEVICE T of(T a, T b) { return smaller(a, b); } };
struct Any { static DEVICE bool of(bool a, bool b) { return a || b; } };
struct All { static DEVICE bool of(bool a, bool b) { return a && b; } };

template <class T> DEVICE T swapped(T x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
DEVICE bool swapped(bool x, int mask) { return __shfl_xor_sync(0xffffffffu, (int)x, mask) != 0; }

template <class Op, class T> DEVICE T of_warp(T x) {
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) x = Op::of(x, swapped(x, mask));
    return x;
}

// All threads of a block of WARPS warps; `room` has a place for each warp.
template <class Op, int WARPS, class T> DEVICE T of_block(T x, u64 *room) {
    T *place = (T *)room;
    x = of_warp<Op>(x);
    if ((threadIdx.x & 31) == 0) place[threadIdx.x >> 5] = x;
    __syncthreads();
    x = place[0];
#pragma unroll
    for (int w = 1; w < WARPS; ++w) x = Op::of(x, place[w]);
    __syncthreads();
    return x;
}

// The threads of one column of a block of HEIGHT warps; `room` has a place for each thread.
template <class Op, int HEIGHT, class T> DEVICE T of_column(T x, u64 *room) {
    T *place = (T *)room;
    place[threadIdx.x] = x;
    __syncthreads();
    int column = threadIdx.x & 31;
    x = place[column];
    for (int y = 1; y < HEIGHT; ++y) x = Op::of(x, place[y * 32 + column]);
    __syncthreads();
    return x;
}

// ---- random numbers: the "squares" generator, and distributions in arithmetic that rounds as the host's does
DEVICE u32 random_bits(u64 key, u64 counter) {
    u64 y = counter * key, z = y + key, x = y;
    x = x * x + y; x = x << 32 | x >> 32;
    x = x * x + z; x = x << 32 | x >> 32;
    x = x * x + y; x = x << 32 | x >> 32;
    return (u32)((x * x + z) >> 32);
}
DEVICE float random_unit(u64 key, u64 counter) {
    return __fmul_rn(__fadd_rn((float)(random_bits(key, counter) >> 9), 0.5f), 1.f / 8388608.f);
}
DEVICE float polynomial(float x, const float (&c)[9]) {
    float p = c[0];
#pragma unroll
    for (int i = 1; i < 9; ++i) p = __fadd_rn(__fmul_rn(p, x), c[i]);
    return p;
}
DEVICE float random_log(float x) {
    const float c[9] = {7.0376836e-2f, -1.151461e-1f, 1.1676999e-1f, -1.2420141e-1f, 1.4249323e-1f, -1.6668057e-1f, 2.0000716e-1f, -2.4999994e-1f, 3.333333e-1f};
    int root = 0x3f3504f3, relative = __float_as_int(x) - root;
    float e = (float)(relative >> 23);
    float f = __fadd_rn(__int_as_float((relative & 0x007fffff) + root), -1.f);
    float square = __fmul_rn(f, f);
    float y = __fmul_rn(polynomial(f, c), __fmul_rn(square, f));
    y = __fadd_rn(__fmul_rn(e, -2.1219444e-4f), y);
    y = __fadd_rn(__fmul_rn(square, -0.5f), y);
    return __fadd_rn(__fmul_rn(e, 0.6933594f), __fadd_rn(f, y));
}
DEVICE float random_erfinv(float x) {
    const float near[9] = {2.8102264e-8f, 3.4327394e-7f, -3.5233877e-6f, -4.3915065e-6f, 0.00021858087f, -0.001253725f, -0.0041776816f, 0.24664073f, 1.5014094f};
    const float far[9] = {-0.00020021426f, 0.00010095056f, 0.0013493432f, -0.0036734284f, 0.0057395077f, -0.0076224613f, 0.00943887f, 1.001674f, 2.8329768f};
    float w = -random_log(__fmul_rn(__fadd_rn(1.f, -x), __fadd_rn(1.f, x)));
    float p = w < 5.f ? polynomial(__fadd_rn(w, -2.5f), near) : polynomial(__fadd_rn(__fsqrt_rn(w), -3.f), far);
    return __fmul_rn(p, x);
}
DEVICE float random_uniform(float lo, float range, u64 key, u64 at) {
    return __fadd_rn(lo, __fmul_rn(random_unit(key, at), range));
}
// `scale` is the deviation times the square root of 2; `mass` is 1, or less for a truncated distribution.
DEVICE float random_normal(float scale, float mass, u64 key, u64 at) {
    float x = __fadd_rn(__fmul_rn(2.f, random_unit(key, at)), -1.f);
    return __fmul_rn(scale, random_erfinv(__fmul_rn(mass, x)));
}
DEVICE int random_int(u32 n, u64 key, u64 at) { return (int)((u64)random_bits(key, at) * n >> 32); }
DEVICE bool random_event(double p, u64 key, u64 at) { return (double)random_unit(key, at) < p; }
