// SPDX-License-Identifier: Apache-2.0
// An array whose growth moves nothing and makes one page of items, however far the new one lies behind the
// others. A vector copies all that it has: ten million links in one step of the core, a third of a second.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

namespace cistern {

// Items by dense ids. They keep their address.
template <class T>
class PagedArray final {
 public:
  static constexpr std::size_t kPage = 4096;  // items

  // Items are this until they are written.
  explicit PagedArray(const T& empty = T{}) : empty_(empty) {}

  // Null: its page was never made.
  const T* Find(std::size_t at) const {
    const std::size_t page = at / kPage;
    return page < pages_.size() && pages_[page] != nullptr ? &pages_[page][at % kPage] : nullptr;
  }
  // Of an item whose page was made.
  T& operator[](std::size_t at) { return pages_[at / kPage][at % kPage]; }
  const T& operator[](std::size_t at) const { return pages_[at / kPage][at % kPage]; }
  // The item; its page is made where it is not there.
  T& Make(std::size_t at) {
    const std::size_t page = at / kPage;
    if (page >= pages_.capacity()) pages_.reserve(page + page / 2 + 16);
    if (page >= pages_.size()) pages_.resize(page + 1);
    if (pages_[page] == nullptr) {
      pages_[page] = std::make_unique_for_overwrite<T[]>(kPage);
      std::fill_n(pages_[page].get(), kPage, empty_);
      ++made_;
    }
    return pages_[page][at % kPage];
  }
  // All pages of the first `count` items.
  void Reserve(std::size_t count) {
    for (std::size_t at = 0; at < count; at += kPage) Make(at);
  }
  // Pages so far.
  std::size_t made() const { return made_; }

 private:
  const T empty_;
  std::vector<std::unique_ptr<T[]>> pages_;
  std::size_t made_ = 0;
};

}  // namespace cistern
