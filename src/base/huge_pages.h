// SPDX-License-Identifier: Apache-2.0
// Pages of 2 MiB where the system has them. Without them what is large is slower and nothing else, so nothing
// here fails.
#pragma once

#include <cstddef>

namespace cistern {

// As x86-64 has them, and aarch64 with pages of 4 KiB.
inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

// Asks for huge pages for what of this private memory is made of whole ones, before it is first touched.
void AskForHugePages(void* memory, std::size_t bytes);

// Moves what of this memory is made of whole huge pages, and present, into such pages now: also shared memory
// whose file system gives none by itself (a tmpfs does not, unless told). What is read or written meanwhile
// is not disturbed; a page that a device holds stays as it is. Linux 6.1.
void MoveIntoHugePages(void* memory, std::size_t bytes);

}  // namespace cistern
