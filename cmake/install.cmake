# cmake --install: the library, its headers, a pkg-config file and a CMake package. Nothing here knows the prefix, so the
# installed tree may be moved. The Python extension is no part of it; a wheel has nothing of it.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/memscale)

install(TARGETS memscale_shared memscale_static EXPORT memscaleTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES include/memscale/memscale.h include/memscale/memscale_errors.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/memscale)

set_target_properties(memscale_shared PROPERTIES EXPORT_NAME memscale)
install(EXPORT memscaleTargets NAMESPACE memscale:: DESTINATION ${package_dir})
configure_package_config_file(cmake/memscaleConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/memscaleConfig.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/memscaleConfigVersion.cmake
  COMPATIBILITY SameMinorVersion) # before 1.0 a minor version may break
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/memscaleConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/memscaleConfigVersion.cmake
  DESTINATION ${package_dir})

# The way from the folder of memscale.pc to the others: libdir may have any depth, or stand outside of the prefix.
set(pc_dir ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH pc_prefix ${pc_dir} ${CMAKE_INSTALL_PREFIX})
file(RELATIVE_PATH pc_includedir ${pc_dir} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
configure_file(cmake/memscale.pc.in ${CMAKE_CURRENT_BINARY_DIR}/memscale.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/memscale.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
