"""n-shortcut networks: exact Hessians, batched dynamics, and the figures of Li et al., *Demystifying ResNet*."""
