// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cairn/stores/basic_file_store.hpp>
#include <cairn/stores/file_store.hpp>

#if defined(CAIRN_COMPILED)
namespace cairn {
inline namespace v1 {
template class detail::file_object_writer<posix_file_system>;
template class detail::shared_file_writer<posix_file_system>;
template class detail::file_read_session<posix_file_system>;
template class basic_file_store<posix_file_system>;
template std::shared_ptr<detail::store_face> detail::face_of(std::shared_ptr<file_store> store);
static_assert(DurabilityHints<file_store> && SharedStore<file_store> && SelfTestingStore<file_store> &&
              ConditionalRemove<file_store> && OffersReadSessions<file_store> && LinksObjects<file_store> &&
              WatchesChanges<file_store> && IdentifiesObjects<file_store> && IdentifiesRoot<file_store>);

}  // namespace v1
}  // namespace cairn
#endif
