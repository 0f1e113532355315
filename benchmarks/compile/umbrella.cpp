// SPDX-License-Identifier: Apache-2.0
// The include alone.
#include <cairn/cairn.hpp>

int main() {}
