// SPDX-License-Identifier: Apache-2.0
// Macros that system headers and other libraries define, with values that break a header that uses the name.
// Every header of cairn must compile after them.
#pragma once
// <complex.h>, <termios.h>, <sys/sysmacros.h>, <math.h>
#define I (1.0)
#define B0 0000000
#define B50 0000001
#define major(device) ((device) >> 8)
#define minor(device) ((device)&0xff)
#define makedev(a, b) (((a) << 8) | (b))
#define DOMAIN 1
#define OVERFLOW 3
#define UNDERFLOW 4
// Headers of other systems that portable projects emulate
#define small char
#define near
#define far
#define interface struct
#define IN
#define OUT
#define ERROR 0
#define DELETE (0x00010000L)
// X11
#define Status int
#define Success 0
#define Always 2
#define Complex 0
#define Unsorted 0
// Logging and build systems
#define CHECK(condition) hostile CHECK
#define LOG(level) hostile LOG
#define VERSION "1.0"
#define PACKAGE "package"
#define DEBUG 1
#define NDEBUG 1
#define TRACE 0
