// SPDX-License-Identifier: Apache-2.0
#include <cairn/system/compiler.hpp>

#if defined(CAIRN_COMPILED)
extern "C" {
extern const char CAIRN_DETAIL_BODIES;
const char CAIRN_DETAIL_BODIES = 0;
}
#endif
