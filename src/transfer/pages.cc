// SPDX-License-Identifier: Apache-2.0
#include "transfer/pages.h"

#include <algorithm>

#include "base/assert.h"
#include "base/format.h"

namespace cistern::transfer {
namespace {

// Whether [address, +bytes) lies in one of the regions.
bool InOne(std::span<const std::span<std::byte>> regions, std::uint64_t address, std::uint64_t bytes) {
  return std::any_of(regions.begin(), regions.end(), [&](std::span<std::byte> region) {
    const auto begin = reinterpret_cast<std::uintptr_t>(region.data());
    return address >= begin && address - begin <= region.size() && bytes <= region.size() - (address - begin);
  });
}

Status CheckFragment(const Pages::Spec& spec, std::size_t at) {
  const Fragment& fragment = spec.fragments[at];
  const auto address = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(fragment.base));
  const std::string name = Text("fragment ", at, " (address ", Hex(address), ", stride ", fragment.stride,
                                ", bytes ", fragment.bytes, ")");
  if (fragment.base == nullptr) return Status(Code::kInvalid, Text(name, " has no address"));
  if (fragment.bytes == 0) return Status(Code::kInvalid, Text(name, " has no bytes"));
  if (fragment.stride < fragment.bytes && spec.pages > 1)
    return Status(Code::kInvalid, Text(name, ": a page overlaps the next, the stride is below the bytes"));
  std::uint64_t last = 0, end = 0;
  if (__builtin_mul_overflow(spec.pages - 1, fragment.stride, &last) ||
      __builtin_add_overflow(last, fragment.bytes, &last) || __builtin_add_overflow(address, last, &end))
    return Status(Code::kInvalid, Text(name, ": page ", spec.pages - 1, " lies past the end of memory"));
  if (spec.regions && !InOne(*spec.regions, address, last))
    return Status(Code::kInvalid, Text(name, ": its ", spec.pages, " pages, to ", Hex(end),
                                       ", leave the memory that was given for them"));
  return Status();
}

}  // namespace

Result<Pages> Pages::Make(const Spec& spec) {
  if (spec.fragments.empty() || spec.fragments.size() > kMaxFragments)
    return Error(Code::kInvalid,
                 Text(spec.fragments.size(), " fragments a page, it has 1 to ", kMaxFragments));
  if (spec.pages == 0 || spec.pages > kMaxPages)
    return Error(Code::kInvalid, Text("pages is ", spec.pages, ", there are 1 to ", kMaxPages));
  if (spec.first_page >= spec.pages)
    return Error(Code::kInvalid, Text("first_page is ", spec.first_page, " of ", spec.pages, " pages"));
  Pages made;
  made.pages_ = spec.pages;
  made.first_page_ = spec.first_page;
  made.fragments_.assign(spec.fragments.begin(), spec.fragments.end());
  for (std::size_t i = 0; i < spec.fragments.size(); ++i) {
    if (Status status = CheckFragment(spec, i); !status.ok()) return Error(std::move(status));
    if (__builtin_add_overflow(made.part_bytes_, spec.fragments[i].bytes, &made.part_bytes_))
      return Error(Code::kInvalid, Text("the fragments up to ", i, " have more bytes than there are"));
  }
  return made;
}

Status Pages::Check(std::span<const std::uint32_t> ids, bool distinct) const {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < first_page_ || ids[i] >= pages_)
      return Status(Code::kInvalid,
                    Text("page_ids[", i, "] is ", ids[i], ", pages are ", first_page_, " to ", pages_ - 1));
  }
  if (!distinct || std::is_sorted(ids.begin(), ids.end(), std::less_equal<>())) return Status();
  std::vector<std::uint32_t> sorted(ids.begin(), ids.end());
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice == sorted.end()) return Status();
  return Status(Code::kInvalid, Text("page_ids has ", *twice, " twice: a page is loaded once"));
}

void Pages::PiecesOf(std::uint32_t page, std::span<std::span<std::byte>> pieces) const {
  CISTERN_ASSERT(page >= first_page_ && page < pages_ && pieces.size() == fragments_.size());
  for (std::size_t i = 0; i < fragments_.size(); ++i) {
    const Fragment& fragment = fragments_[i];
    pieces[i] = std::span(fragment.base + page * fragment.stride, fragment.bytes);
  }
}

}  // namespace cistern::transfer
