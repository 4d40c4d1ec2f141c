// SPDX-License-Identifier: Apache-2.0
// Where an engine's KV pages lie in this process's memory: pure geometry, nothing here touches a page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cistern/status.h"

namespace cistern::transfer {

// Of page p, the bytes [base + p * stride, + bytes).
struct Fragment {
  std::byte* base = nullptr;
  std::uint64_t stride = 0;
  std::uint64_t bytes = 0;
};

// The part bytes of page p are its fragments one after the other. One fragment a layer where each layer has a
// tensor of its own (LBHNC), one in all where a page is contiguous (BLHNC); a page of k kernel blocks has k
// times as many, each with k times the stride; padding is what no fragment covers. An immutable value.
class Pages final {
 public:
  static constexpr std::size_t kMaxFragments = 4096;
  static constexpr std::uint64_t kMaxPages = 1u << 31;

  struct Spec {
    std::span<const Fragment> fragments;
    std::uint64_t pages = 0;       // ids are first_page <= id < pages
    std::uint64_t first_page = 0;  // 1 where page 0 is the engine's null block
    // Where every fragment of every page has to lie; none: unchecked.
    std::optional<std::span<const std::span<std::byte>>> regions;
  };

  // kInvalid, naming the fragment: none or too many, no bytes, a stride below the bytes, an end that wraps or
  // leaves the regions.
  static Result<Pages> Make(const Spec& spec);

  std::uint64_t part_bytes() const { return part_bytes_; }
  std::uint64_t pages() const { return pages_; }
  std::uint64_t first_page() const { return first_page_; }
  std::size_t fragments() const { return fragments_.size(); }

  // kInvalid, naming the place: an id out of bounds, or, where they are to be written, one that stands twice.
  Status Check(std::span<const std::uint32_t> ids, bool distinct) const;

  // The page's fragments; `page` was checked and `pieces` has fragments() of them.
  void PiecesOf(std::uint32_t page, std::span<std::span<std::byte>> pieces) const;

 private:
  Pages() = default;
  std::vector<Fragment> fragments_;
  std::uint64_t pages_ = 0;
  std::uint64_t first_page_ = 0;
  std::uint64_t part_bytes_ = 0;
};

}  // namespace cistern::transfer
