// SPDX-License-Identifier: Apache-2.0
#include "load_pages.h"

#include "base/assert.h"
#include "transfer/transfers.h"

namespace cistern {

namespace {
constexpr std::int64_t kWaitUs = 300'000'000;  // a slow disk takes long for all of them
}  // namespace

PagesLoaded LoadPages(std::shared_ptr<Store> store, const Namespace& ns, const std::vector<BlockKey>& keys,
                      std::span<std::byte> memory, const std::function<void()>& before_cancel) {
  const std::uint64_t page_bytes = memory.size() / keys.size();
  const transfer::Fragment fragment{memory.data(), page_bytes, page_bytes};
  Result<transfer::Pages> pages =
      transfer::Pages::Make({.fragments = std::span(&fragment, 1), .pages = keys.size()});
  CISTERN_ASSERT(pages.has_value());
  transfer::PageLoad load;
  load.ns = ns;
  load.deadline_us = kWaitUs;
  load.pages = std::make_shared<const transfer::Pages>(std::move(*pages));
  load.keys = std::make_shared<const std::vector<BlockKey>>(keys);
  for (std::size_t i = 0; i < keys.size(); ++i)
    load.page_ids.push_back(static_cast<std::uint32_t>(keys.size() - 1 - i));
  Result<std::unique_ptr<transfer::Transfers>> transfers = transfer::Transfers::Make(std::move(store), {});
  CISTERN_ASSERT(transfers.has_value());
  Result<std::uint64_t> id = (*transfers)->Submit(std::move(load));
  CISTERN_ASSERT(id.has_value());
  if (before_cancel != nullptr) {
    before_cancel();
    (*transfers)->Cancel(*id);
  }
  std::vector<transfer::TransferDone> done = (*transfers)->Wait(kWaitUs);
  if (done.size() != 1) return {};
  return {std::move(done[0].outcomes), std::move(done[0].message), done[0].moved_bytes};
}

}  // namespace cistern
