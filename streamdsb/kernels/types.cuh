// Fixed-width names; NVRTC has no <stdint.h>.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;

constexpr u32 WARP = 32;
constexpr u32 ALL_LANES = 0xffffffffu;
