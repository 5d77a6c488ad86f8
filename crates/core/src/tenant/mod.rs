//! What a tenant namespace with Kustomizations needs: accounts, roles, controller.
