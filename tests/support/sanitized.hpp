// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which sanitizer this is compiled with, for GCC and Clang: CAIRN_TEST_ADDRESS_SANITIZED and
// CAIRN_TEST_THREAD_SANITIZED are 0 or 1.
#if defined(__has_feature)
#define CAIRN_TEST_ADDRESS_SANITIZED __has_feature(address_sanitizer)
#define CAIRN_TEST_THREAD_SANITIZED __has_feature(thread_sanitizer)
#else
#if defined(__SANITIZE_ADDRESS__)
#define CAIRN_TEST_ADDRESS_SANITIZED 1
#else
#define CAIRN_TEST_ADDRESS_SANITIZED 0
#endif
#if defined(__SANITIZE_THREAD__)
#define CAIRN_TEST_THREAD_SANITIZED 1
#else
#define CAIRN_TEST_THREAD_SANITIZED 0
#endif
#endif
